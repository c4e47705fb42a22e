package tool

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/outbound"
)

const (
	// maxPage is how much of a page, after decompression, is read. Text beyond it would not reach the model anyway.
	maxPage = 5 << 20
	// maxRedirects bounds the hops of one fetch after the first request.
	maxRedirects = 5
	// maxURL bounds an address; servers refuse longer ones, and a longer one is data on its way out.
	maxURL = 8 << 10
	// handshakeTimeout leaves time for another hop within FetchTimeout.
	handshakeTimeout = 7 * time.Second
	// bytesPerToken turns max_content_tokens into bytes: the usual rule of thumb for English text.
	bytesPerToken = 4
)

// FetcherConfig makes a Fetcher. The zero value is right for production.
type FetcherConfig struct {
	Guard  outbound.Guard // which addresses; the zero value is the public internet
	Ports  []int          // allowed besides 80 and 443
	Logger *slog.Logger   // nil = discard
}

// Fetcher runs web_fetch calls in the control plane, where an address chosen by a model must not reach anything
// that is not on the public internet. Each hop of a redirect is a new request under the same rules: its name is
// resolved once, every address is checked, and a checked address is what is dialled. It sends no credentials and
// keeps no cookies. It is safe for concurrent use.
type Fetcher struct {
	cfg     FetcherConfig
	timeout time.Duration
	roots   *x509.CertPool // nil = the system's
}

// NewFetcher returns a fetcher.
func NewFetcher(cfg FetcherConfig) *Fetcher {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Fetcher{cfg: cfg, timeout: FetchTimeout}
}

// Judge decides whether a redirect may be followed, and returns the address in the form that was judged. nil =
// every one may.
type Judge func(ctx context.Context, address string) (string, error)

// Fetch runs one web_fetch call with valid input to its outcome. web is the tool's own configuration (WebOf), or
// nil. The address of the call was judged by the caller; judge is asked about those that redirects lead to.
func (f *Fetcher) Fetch(ctx context.Context, call outboard.CallID, input, web outboard.Raw,
	judge Judge) outboard.CallFinished {
	begun := time.Now()
	tctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	p, err := f.fetch(tctx, input, web, judge)
	var fin outboard.CallFinished
	switch {
	case err == nil:
		fin = p.finish(call)
	case ctx.Err() != nil:
		fin = Failed(call, outboard.OutcomeCanceled, "canceled")
	case errors.Is(tctx.Err(), context.DeadlineExceeded):
		fin = Failed(call, outboard.OutcomeError, fmt.Sprintf("fetch failed: it took longer than %v", f.timeout))
	default:
		if r, ok := errors.AsType[*refusal](err); ok {
			f.cfg.Logger.Info("web fetch refused", "call", call, "why", r.why, "detail", r.detail)
		}
		fin = Failed(call, outboard.OutcomeError, err.Error())
	}
	fin.DurationUs = time.Since(begun).Microseconds()
	return fin
}

// refusal is an address that policy forbids. The detail is for the log: what a name resolves to inside is not
// the model's business.
type refusal struct{ why, detail string }

// Error names the wire's code first.
func (r *refusal) Error() string { return "url_not_allowed: " + r.why }

// page is what a fetch got.
type page struct {
	url    string // after redirects
	status int
	media  string // without parameters
	title  string
	text   string
	cut    bool // the body was longer than maxPage
	most   int  // bytes of text for the model
}

// fetch follows redirects to a page.
func (f *Fetcher) fetch(ctx context.Context, input, web outboard.Raw, judge Judge) (*page, error) {
	var in struct {
		URL string `json:"url"`
	}
	if err := json.Unmarshal(input, &in); err != nil {
		return nil, fmt.Errorf("invalid input for web_fetch: %w", err)
	}
	rules, err := parseWeb(web)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(strings.TrimSpace(in.URL))
	if err != nil {
		return nil, fmt.Errorf("url is not valid: %s", clip(strings.TrimPrefix(err.Error(), "parse ")))
	}
	for hop := 0; ; hop++ {
		next, p, err := f.hop(ctx, u, rules)
		if err != nil && hop > 0 {
			return nil, fmt.Errorf("%w (after a redirect to %s)", err, clip(u.Redacted()))
		}
		if err != nil || next == nil {
			return p, err
		}
		if hop == maxRedirects {
			return nil, fmt.Errorf("fetch failed: more than %d redirects", maxRedirects)
		}
		if u, err = judged(ctx, next, judge); err != nil {
			return nil, err
		}
	}
}

// judged is the address of a redirect in the form that was judged.
func judged(ctx context.Context, next *url.URL, judge Judge) (*url.URL, error) {
	if judge == nil {
		return next, nil
	}
	address, err := judge(ctx, next.String())
	if err == nil {
		next, err = url.Parse(address)
	}
	if err != nil {
		return nil, fmt.Errorf("the page redirects to another address, which was not fetched: %w", err)
	}
	return next, nil
}

// hop makes one request. It returns where to go on, or the page.
func (f *Fetcher) hop(ctx context.Context, u *url.URL, rules webRules) (*url.URL, *page, error) {
	host, err := f.checkURL(u, rules)
	if err != nil {
		return nil, nil, err
	}
	addrs, err := f.resolve(ctx, host)
	if err != nil {
		return nil, nil, err
	}
	client := http.Client{
		Transport:     f.transport(addrs),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	defer client.CloseIdleConnections()
	target := *u // in the form that was checked
	target.Fragment = ""
	target.Host = host
	if port := u.Port(); port != "" {
		target.Host = net.JoinHostPort(host, port)
	} else if strings.Contains(host, ":") {
		target.Host = "[" + host + "]"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, nil, fmt.Errorf("fetch failed: %w", err)
	}
	req.Header.Set("User-Agent", "outboard-web-fetch (+https://github.com/outboard-dev/outboard)")
	req.Header.Set("Accept", "text/html,application/xhtml+xml,text/*;q=0.9,application/json;q=0.9,*/*;q=0.1")
	resp, err := client.Do(req)
	if err != nil {
		return nil, nil, fmt.Errorf("fetch failed: %w", err)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		if to := resp.Header.Get("Location"); to != "" {
			next, err := u.Parse(to)
			if err != nil {
				return nil, nil, fmt.Errorf("fetch failed: redirect to an address that is not valid: %s", clip(to))
			}
			return next, nil, nil
		}
	}
	p, err := readPage(&target, resp, rules)
	return nil, p, err
}

// checkURL applies every rule that needs no resolver, and returns the host.
func (f *Fetcher) checkURL(u *url.URL, rules webRules) (string, error) {
	refuse := func(format string, args ...any) (string, error) {
		return "", &refusal{why: fmt.Sprintf(format, args...)}
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return refuse("only http and https addresses can be fetched")
	}
	if u.User != nil {
		return refuse("an address must not carry a user name or password")
	}
	if u.Opaque != "" || len(u.String()) > maxURL {
		return refuse("the address has the wrong form or is longer than %d bytes", maxURL)
	}
	if p := u.Port(); p != "" && p != "80" && p != "443" && !f.allowsPort(p) {
		return refuse("port %s; only %s, since what listens elsewhere is rarely meant for everyone", clip(p), f.ports())
	}
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	if why := outbound.CheckHost(host); why != "" {
		return refuse("%s", why)
	}
	if !rules.allow(host) {
		return refuse("host %s is not among the domains this agent may fetch from", clip(host))
	}
	return host, nil
}

// ports names the allowed ports.
func (f *Fetcher) ports() string {
	list := []string{"80"}
	for _, p := range f.cfg.Ports {
		list = append(list, strconv.Itoa(p))
	}
	return "ports " + strings.Join(list, ", ") + " and 443 are allowed"
}

func (f *Fetcher) allowsPort(port string) bool {
	for _, p := range f.cfg.Ports {
		if port == strconv.Itoa(p) {
			return true
		}
	}
	return false
}

// resolve returns the addresses of a host, all of them checked.
func (f *Fetcher) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	addrs, err := f.cfg.Guard.Lookup(ctx, host)
	if r, ok := errors.AsType[*outbound.Refusal](err); ok {
		return nil, &refusal{why: r.Why, detail: r.Detail}
	}
	if err != nil {
		return nil, fmt.Errorf("fetch failed: %w", err)
	}
	return addrs, nil
}

// transport dials the checked addresses and nothing else, whatever the request says.
func (f *Fetcher) transport(addrs []netip.Addr) *http.Transport {
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		return outbound.Dial(ctx, addrs, port)
	}
	return &http.Transport{
		DialContext:            dial,
		Proxy:                  nil, // a proxy would resolve and dial by itself
		ForceAttemptHTTP2:      true,
		TLSClientConfig:        &tls.Config{RootCAs: f.roots}, // the name to verify is the address's host
		DisableKeepAlives:      true,
		TLSHandshakeTimeout:    handshakeTimeout,
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// readPage reads a bounded part of the body and turns it into text.
func readPage(u *url.URL, resp *http.Response, rules webRules) (*page, error) {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxPage+1))
	if err != nil {
		return nil, fmt.Errorf("fetch failed: reading the page: %w", err)
	}
	p := &page{url: u.String(), status: resp.StatusCode, most: outboard.MaxToolOutput - 10<<10}
	if rules.MaxContentTokens > 0 {
		p.most = min(p.most, rules.MaxContentTokens*bytesPerToken)
	}
	if len(body) > maxPage {
		body, p.cut = body[:maxPage], true
	}
	p.read(resp.Header.Get("Content-Type"), body, u)
	return p, nil
}

// finish renders a page for the model.
func (p *page) finish(call outboard.CallID) outboard.CallFinished {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\nHTTP %d %s", p.url, p.status, p.media)
	if p.title != "" {
		fmt.Fprintf(&b, "\nTitle: %s", p.title)
	}
	b.WriteString("\n\n")
	head := Clean(b.String())
	text := Clean(p.text)
	n := prefixLen(text, p.most, maxEncoded-6*len(head)-1024)
	cut := p.cut || n < len(text)
	body := text[:n]
	if body == "" {
		body = "(no text)"
	}
	if cut {
		body += "\n(the rest of the page was left out)"
	}
	return outboard.CallFinished{
		Call:      call,
		Outcome:   outboard.OutcomeOK,
		IsError:   p.status >= 400,
		Truncated: cut,
		Content:   []outboard.Content{outboard.Text(head + body)},
	}
}
