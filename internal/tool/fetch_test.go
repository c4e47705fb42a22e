package tool

import (
	"compress/gzip"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/outbound"
)

// site is a web server on loopback under the names that its fetcher resolves to it.
type site struct {
	*http.ServeMux
	fetcher *Fetcher
	port    string
	hits    atomic.Int64
	names   map[string][]string // host -> addresses, besides *.test which is this server
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{ServeMux: http.NewServeMux(), names: map[string][]string{}}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.hits.Add(1)
		s.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	s.port = u.Port()
	port, err := strconv.Atoi(s.port)
	if err != nil {
		t.Fatal(err)
	}
	s.fetcher = NewFetcher(FetcherConfig{Guard: outbound.Guard{Private: outbound.Loopback, Resolve: s.resolve},
		Ports: []int{port}})
	return s
}

func (s *site) resolve(_ context.Context, host string) ([]netip.Addr, error) {
	name, rooted := strings.CutSuffix(host, ".")
	if !rooted {
		return nil, fmt.Errorf("%q is not rooted", host)
	}
	list, ok := s.names[name]
	if !ok && strings.HasSuffix(name, ".test") {
		list, ok = []string{"127.0.0.1"}, true
	}
	if !ok {
		return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	var addrs []netip.Addr
	for _, a := range list {
		addrs = append(addrs, netip.MustParseAddr(a))
	}
	return addrs, nil
}

func (s *site) get(t *testing.T, address, web string) (outboard.CallFinished, string) {
	t.Helper()
	in, err := json.Marshal(map[string]string{"url": address})
	if err != nil {
		t.Fatal(err)
	}
	if err := lookup(t, "web_fetch").Validate(in); err != nil {
		t.Fatal(err)
	}
	fin := s.fetcher.Fetch(t.Context(), "sevt_1", in, outboard.Raw(web), nil)
	if fin.Call != "sevt_1" {
		t.Errorf("call %q", fin.Call)
	}
	if ev := outboard.NewEvent("sthr_1", &fin); len(ev.Data) > outboard.MaxEventData {
		t.Errorf("event of %d bytes", len(ev.Data))
	}
	return fin, outboard.PlainText(fin.Content)
}

func (s *site) refused(t *testing.T, address, web string) {
	t.Helper()
	before := s.hits.Load()
	fin, text := s.get(t, address, web)
	if !fin.IsError || fin.Outcome != outboard.OutcomeError || !strings.HasPrefix(text, "url_not_allowed: ") {
		t.Errorf("%s: not refused: %q", address, text)
	}
	if n := s.hits.Load() - before; n != 0 {
		t.Errorf("%s: %d requests were made", address, n)
	}
}

// Broken if a page does not reach the model as readable text with its title and links.
func TestFetchPage(t *testing.T) {
	s := newSite(t)
	s.HandleFunc("/page", func(w http.ResponseWriter, r *http.Request) {
		if len(r.Header["Cookie"])+len(r.Header["Authorization"])+len(r.Header["Referer"]) > 0 {
			t.Errorf("headers %v", r.Header)
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		io.WriteString(w, `<!doctype html><title>A &amp; B</title><style>p{}</style><p>Hello,
			<b>world</b>. See <a href="/doc?a=1&amp;b=2">the doc</a>.<script>if (a < b) steal()</script><ul><li>one<li>two</ul>`)
	})
	fin, text := s.get(t, "http://www.test:"+s.port+"/page#part", "")
	want := "http://www.test:" + s.port + "/page\nHTTP 200 text/html\nTitle: A & B\n\n" +
		"Hello, world. See [the doc](http://www.test:" + s.port + "/doc?a=1&b=2).\n- one\n- two"
	if fin.IsError || fin.Outcome != outboard.OutcomeOK || fin.Truncated || text != want {
		t.Errorf("got %q, want %q", text, want)
	}
}

// Broken if an address that is not on the public internet, or is not plainly a web address, can be fetched.
func TestFetchRefusesAddresses(t *testing.T) {
	s := newSite(t)
	s.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	if fin, text := s.get(t, "http://127.0.0.1:"+s.port+"/", ""); fin.IsError {
		t.Fatalf("control: %s", text)
	}
	for name, addrs := range map[string][]string{
		"private.example": {"10.1.2.3"}, "mapped.example": {"::ffff:10.1.2.3"}, "mixed.example": {"93.184.216.34",
			"192.168.0.1"},
		"v6.example": {"fd00:ec2::254"}, "nat64.example": {"64:ff9b::a01:203"}, "zero.example": {"0.0.0.0"},
	} {
		s.names[name] = addrs
		s.refused(t, "http://"+name+"/", "")
	}
	for _, address := range []string{
		"http://10.0.0.1/", "http://172.31.255.1/", "http://192.168.1.1/", "http://100.64.0.1/", "http://100.100.100.200/",
		"http://169.254.169.254/latest/meta-data/", "http://168.63.129.16/", "http://0.0.0.0/", "http://0.1.2.3/",
		"http://224.0.0.1/", "http://255.255.255.255/", "http://192.0.0.192/", "http://198.18.0.1/",
		"http://[::]/", "http://[::ffff:127.0.0.1]:" + s.port + "/", "http://[::ffff:7f00:1]:" + s.port +
			"/", "http://[::127.0.0.1]/",
		"http://[fe80::1]/", "http://[fe80::1%25lo]/", "http://[fc00::1]/", "http://[fd20:ce::254]/", "http://[ff02::1]/",
		"http://[64:ff9b::7f00:1]/", "http://[2002:7f00:1::]/", "http://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/",
		"http://[2a00:1450::5efe:7f00:1]/",
		"http://2130706433:" + s.port +
			"/", "http://0x7f000001/", "http://0x7f.1/", "http://127.1/", "http://0177.0.0.1/",
		"http://127.0.0.1.:" + s.port +
			"0/", "http://metadata.google.internal/", "http://metadata/", "http://METADATA.aws/",
		"http://www.test:22/", "http://www.test:" + s.port +
			"1/", "ftp://www.test/", "file:///etc/passwd", "gopher://www.test/",
		"javascript:alert(1)", "http:www.test", "//www.test/", "www.test", "http:///path", "http://a..test/", "http://\u2460.test/",
		"http://user:secret@www.test:" + s.port + "/", "http://user@www.test:" + s.port + "/",
		"http://www.test:" + s.port + "/" + strings.Repeat("a", maxURL),
	} {
		s.refused(t, address, "")
	}
	want := "url_not_allowed: port 22; only ports 80, " + s.port + " and 443 are allowed, since "
	if _, text := s.get(t, "http://www.test:22/", ""); !strings.HasPrefix(text, want) {
		t.Errorf("the refusal of a port does not say which ones are allowed: %q", text)
	}
	s.fetcher.cfg.Guard.Private = nil
	for _, address := range []string{"http://127.0.0.1:" + s.port + "/", "http://www.test:" + s.port + "/",
		"http://[::1]:" + s.port + "/"} {
		s.refused(t, address, "")
	}
}

// Broken if a refusal tells the model what a name resolves to inside.
func TestFetchKeepsInsideAddressesToItself(t *testing.T) {
	s := newSite(t)
	s.names["intranet.example"] = []string{"10.20.30.40"}
	if _, text := s.get(t, "http://intranet.example/", ""); strings.Contains(text, "10.20") {
		t.Errorf("%q", text)
	}
}

// Broken if a name that changes its address between check and connection reaches the second address.
func TestFetchResolvesOnce(t *testing.T) {
	s := newSite(t)
	s.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "from the checked address") })
	var lookups atomic.Int64
	s.fetcher.cfg.Guard.Resolve = func(context.Context, string) ([]netip.Addr, error) {
		if lookups.Add(1) > 1 {
			return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil
		}
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}
	if _, text := s.get(t, "http://rebind.test:"+s.port+"/", ""); !strings.Contains(text, "from the checked address") {
		t.Errorf("%q", text)
	}
	if n := lookups.Load(); n != 1 {
		t.Errorf("resolved %d times", n)
	}
	s.refused(t, "http://rebind.test:"+s.port+"/", "") // control: the resolver's second answer is refused
}

// Broken if a redirect escapes a rule that its first address had to meet, or never ends.
func TestFetchRedirects(t *testing.T) {
	s := newSite(t)
	to := ""
	s.HandleFunc("/go", func(w http.ResponseWriter, r *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "a", Value: "b"})
		w.Header().Set("Location", to)
		w.WriteHeader(http.StatusFound)
	})
	s.HandleFunc("/end", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "end, cookies %v",
			r.Cookies())
	})
	s.HandleFunc("/count/{n}", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.PathValue("n"))
		if n == 0 {
			io.WriteString(w, "arrived")
			return
		}
		http.Redirect(w, r, "/count/"+strconv.Itoa(n-1), http.StatusTemporaryRedirect)
	})
	start := "http://a.test:" + s.port + "/go"
	to = "http://b.test:" + s.port + "/end"
	if fin, text := s.get(t, start, ""); fin.IsError || !strings.HasPrefix(text, to) ||
		!strings.Contains(text, "cookies []") {
		t.Errorf("control: %q", text)
	}
	if fin, text := s.get(t, start, `{"allowed_domains":["a.test"]}`); !fin.IsError ||
		!strings.HasPrefix(text, "url_not_allowed") {
		t.Errorf("to another domain: %q", text)
	}
	s.names["inside.example"] = []string{"192.168.7.7"}
	for _, to = range []string{"http://10.0.0.1/", "http://inside.example/", "http://[::ffff:127.0.0.1]:" + s.port +
		"/end",
		"file:///etc/passwd", "http://u:p@b.test:" + s.port + "/end", "//2130706433:" + s.port +
			"/end", "gopher://x/", "http://b.test:25/"} {
		before := s.hits.Load()
		fin, text := s.get(t, start, "")
		if !fin.IsError || !strings.HasPrefix(text, "url_not_allowed: ") || s.hits.Load() != before+1 {
			t.Errorf("to %s: %q", to, text)
		}
	}
	if _, text := s.get(t, "http://a.test:"+s.port+"/count/5", ""); !strings.Contains(text, "arrived") {
		t.Errorf("5 redirects: %q", text)
	}
	if fin, text := s.get(t, "http://a.test:"+s.port+"/count/6", ""); !fin.IsError ||
		!strings.Contains(text, "more than 5 redirects") {
		t.Errorf("6 redirects: %q", text)
	}
}

// Broken if an agent's domain lists do not bind, or a configuration that cannot be enforced is passed over.
func TestFetchWebRules(t *testing.T) {
	s := newSite(t)
	s.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, strings.Repeat("word ", 100)) })
	at := func(host string) string { return "http://" + host + ":" + s.port + "/" }
	for _, web := range []string{"", "null", `{}`, `{"url_sources":null}`,
		`{"allowed_domains":["docs.test","other.example"]}`,
		`{"allowed_domains":["Docs.Test"]}`, `{"blocked_domains":["evil.test"]}`, `{"url_sources":{"user_input":"all"}}`,
		`{"url_sources":{"user_input":{"type":"all"},"client_tool_results":null}}`} {
		for _, host := range []string{"docs.test", "www.docs.test", "WWW.docs.test."} {
			if fin, text := s.get(t, at(host), web); fin.IsError {
				t.Errorf("%s on %s: %q", web, host, text)
			}
		}
	}
	s.refused(t, at("notdocs.test"), `{"allowed_domains":["docs.test"]}`)
	s.refused(t, at("docs.test"), `{"allowed_domains":[]}`)
	s.refused(t, at("docs.test"), `{"allowed_domains":[""]}`)
	s.refused(t, at("www.evil.test."), `{"blocked_domains":["evil.test"]}`)
	s.refused(t, at("docs.test"), `{"url_sources":{"user_input":"all","server_tool_results":"none"}}`)
	s.refused(t, at("docs.test"), `{"allowed_domains":"docs.test"}`)
	fin, text := s.get(t, at("docs.test"), `{"max_content_tokens":10}`)
	if !fin.Truncated || strings.Count(text, "word") != 8 || !strings.Contains(text, "left out") {
		t.Errorf("10 tokens: %q", text)
	}
}

// Broken if a large body, or a small one that unpacks to a large one, is read beyond the cap.
func TestFetchHugeBody(t *testing.T) {
	s := newSite(t)
	var sent atomic.Int64
	write := func(w io.Writer) {
		chunk := []byte(strings.Repeat("x", 1<<16))
		for range 1 << 12 { // 256 MB
			n, err := w.Write(chunk)
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	}
	s.HandleFunc("/huge", func(w http.ResponseWriter, r *http.Request) { write(w) })
	s.HandleFunc("/bomb", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		write(z)
		z.Close()
	})
	for _, path := range []string{"/huge", "/bomb"} {
		fin, text := s.get(t, "http://www.test:"+s.port+path, "")
		if fin.IsError || !fin.Truncated || len(text) > outboard.MaxToolOutput || !strings.Contains(text, "xxx") {
			t.Errorf("%s: %d bytes, %+v", path, len(text), fin.IsError)
		}
	}
}

// Broken if a server that never finishes holds a turn, or an interrupt has to wait for it.
func TestFetchSlowBody(t *testing.T) {
	s := newSite(t)
	slow := func(path string) <-chan struct{} {
		begun := make(chan struct{}, 10) // more than there are attempts
		s.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "first")
			http.NewResponseController(w).Flush()
			begun <- struct{}{}
			<-r.Context().Done()
		})
		return begun
	}
	begun := slow("/slow")
	// a busy machine may not get that far
	for s.fetcher.timeout = 100 * time.Millisecond; len(begun) == 0 &&
		s.fetcher.timeout < time.Minute; s.fetcher.timeout *= 2 {
		want := fmt.Sprintf("fetch failed: it took longer than %v", s.fetcher.timeout)
		if fin, text := s.get(t, "http://www.test:"+s.port+"/slow", ""); !fin.IsError || text != want {
			t.Errorf("%q, want %q", text, want)
		}
	}
	if len(begun) == 0 {
		t.Fatal("no attempt got as far as the body")
	}
	s.fetcher.timeout = FetchTimeout
	ctx, cancel := context.WithCancel(t.Context())
	begun = slow("/slower")
	go func() { <-begun; cancel() }()
	fin := s.fetcher.Fetch(ctx, "sevt_1", outboard.Raw(`{"url":"http://www.test:`+s.port+`/slower"}`), nil, nil)
	if fin.Outcome != outboard.OutcomeCanceled {
		t.Errorf("%+v", fin)
	}
}

// Broken if other content types or failures come out as anything but a short readable result.
func TestFetchOtherAnswers(t *testing.T) {
	s := newSite(t)
	serve := func(path, contentType, body string, status int) {
		s.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", contentType)
			w.WriteHeader(status)
			io.WriteString(w, body)
		})
	}
	serve("/json", "application/problem+json; charset=utf-8", `{"a":1}`, 200)
	serve("/pdf", "application/pdf", "%PDF-1.7\x00\x01", 200)
	serve("/latin", "text/plain; charset=ISO-8859-1", "caf\xe9 \x80", 200)
	serve("/bad", "text/plain; charset=utf-8", "caf\xe9\x00", 200)
	serve("/missing", "text/plain", "nothing here", 404)
	serve("/empty", "text/plain", "", 200)
	serve("/odd", ";;;", "x", 200)
	for path, want := range map[string]string{
		"/json":    "HTTP 200 application/problem+json\n\n{\"a\":1}",
		"/pdf":     "HTTP 200 application/pdf\n\n(10 bytes that are not text were left out)",
		"/latin":   "HTTP 200 text/plain\n\ncafé €",
		"/bad":     "HTTP 200 text/plain\n\ncaf\uFFFD\uFFFD",
		"/missing": "HTTP 404 text/plain\n\nnothing here",
		"/empty":   "HTTP 200 text/plain\n\n(no text)",
		"/odd":     "HTTP 200 \n\n(1 bytes that are not text were left out)",
	} {
		fin, text := s.get(t, "http://www.test:"+s.port+path, "")
		if !strings.HasSuffix(text, "\n"+want) || fin.IsError != (path == "/missing") {
			t.Errorf("%s: %v %q", path, fin.IsError, text)
		}
	}
	if fin, text := s.get(t, "http://nowhere.example/", ""); !fin.IsError || !strings.Contains(text, "no such host") {
		t.Errorf("%q", text)
	}
	if fin, text := s.get(t, "http://\x7f/", ""); !fin.IsError || !strings.HasPrefix(text, "url is not valid") {
		t.Errorf("%q", text)
	}
}

// Broken if https does not work, does not verify the name that was asked for, or trusts anybody.
func TestFetchTLS(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s for %s at %s", r.Proto, r.TLS.ServerName, r.Host)
	}))
	srv.EnableHTTP2 = true
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	defer srv.Close()
	_, port, err := net.SplitHostPort(srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t)
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	s.fetcher.cfg.Ports = append(s.fetcher.cfg.Ports, n)
	s.names["example.com"] = []string{"127.0.0.1"} // the certificate's name
	if fin, text := s.get(t, "https://example.com:"+port+"/", ""); !fin.IsError ||
		!strings.Contains(text, "certificate") {
		t.Errorf("unknown authority: %q", text)
	}
	s.fetcher.roots = x509.NewCertPool()
	s.fetcher.roots.AddCert(srv.Certificate())
	if fin, text := s.get(t, "https://other.test:"+port+"/", ""); !fin.IsError ||
		!strings.Contains(text, "other.test") {
		t.Errorf("another name: %q", text)
	}
	want := "HTTP/2.0 for example.com at example.com:" + port
	if fin, text := s.get(t, "https://Example.com.:"+port+"/", ""); fin.IsError || !strings.HasSuffix(text, want) {
		t.Errorf("in another form: %q", text)
	}
	if fin, text := s.get(t, "https://example.com:"+port+"/", ""); fin.IsError || !strings.HasSuffix(text, want) {
		t.Errorf("control: %q", text)
	}
}

// Broken if an agent's rules for web_fetch do not reach the fetcher.
func TestWebOf(t *testing.T) {
	sets := []outboard.Toolset{
		{Kind: "custom", Name: "web_fetch"},
		{Kind: "builtin", Configs: []outboard.ToolConfig{{Name: "bash"},
			{Name: "web_fetch", Web: outboard.Raw(`{"allowed_domains":["a"]}`)}}},
	}
	if got := string(WebOf(sets)); got != `{"allowed_domains":["a"]}` {
		t.Errorf("%s", got)
	}
	if got := WebOf(sets[:1]); got != nil {
		t.Errorf("without any: %s", got)
	}
}
