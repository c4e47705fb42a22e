package egress_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/egress"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// box is a native sandbox behind a gateway.
type box struct {
	sandbox.Sandbox
	n int
}

// realBox makes a sandbox whose network is the rig's gateway.
func realBox(t *testing.T, r *rig, cfg *outboard.SessionConfig, options ...option) *box {
	t.Helper()
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "guest"), "../../cmd/outboard-guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the guest: %v: %s", err, out)
	}
	p, err := native.New(native.Config{Dir: filepath.Join(dir, "s"), Guest: filepath.Join(dir, "guest")})
	if outboard.KindOf(err) == outboard.Unavailable && os.Getenv("CI") == "" {
		t.Skip("no native sandbox here: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	gateway := egress.Config{Store: r.store, Provider: p, Dir: t.TempDir(), Roots: r.world.pool, Guard: r.guard()}
	for _, o := range options {
		o(&gateway, cfg)
	}
	g, err := egress.New(gateway)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Stop)
	ca, err := g.Prepare(r.id)
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.Create(t.Context(), sandbox.Spec{ID: r.id, Generation: "g", Network: &sandbox.Network{CA: ca}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		if err := errors.Join(p.Destroy(context.Background(), r.id), p.Close()); err != nil {
			t.Error(err)
		}
	})
	g.Attach(r.id, r.session, *cfg)
	return &box{Sandbox: s}
}

func (b *box) sh(t *testing.T, script string) (string, int) {
	t.Helper()
	b.n++
	input, _ := json.Marshal(map[string]any{"argv": []string{"/bin/bash", "-c", script}})
	key := fmt.Sprint("k", b.n)
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	res, err := b.Start(ctx, guest.Start{Key: key, Epoch: 1, Generation: "g", Digest: key, Op: "exec", Input: input,
		TimeoutMs: 80_000, OutputLimit: 100_000})
	if err == nil && res.State != guest.StateDone {
		res, err = b.Wait(ctx, key, 1)
	}
	if err != nil {
		t.Fatal(err)
	}
	if res.ExitCode == nil {
		return string(res.Output) + res.Cause, -1
	}
	return string(res.Output), *res.ExitCode
}

// has skips a tool that the host does not have, but not in CI.
func (b *box) has(t *testing.T, tool string) {
	t.Helper()
	if _, code := b.sh(t, "command -v "+tool); code != 0 {
		if os.Getenv("CI") != "" {
			t.Fatalf("CI must have %s", tool)
		}
		t.Skip("the sandbox has no ", tool)
	}
}

const bare = `unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY no_proxy NO_PROXY NODE_USE_ENV_PROXY; `

// ownServers asks servers of the sandbox itself, by each of its names and addresses, through programs that know
// of the proxy.
func ownServers(t *testing.T, b *box) {
	b.has(t, "curl")
	b.has(t, "python3")
	const serve = `mkdir -p /tmp/own && cd /tmp/own && echo own server >index.html
for at in 0.0.0.0 ::; do python3 -m http.server 800$([ $at = :: ] && echo 1 || echo 0) --bind $at >/dev/null 2>&1 & done
for port in 8000 8001; do until (exec 3<>/dev/tcp/127.0.0.1/$port) 2>/dev/null; do :; done; done`
	if out, code := b.sh(t, serve+"; echo up"); code != 0 || !strings.HasSuffix(out, "up\n") {
		t.Fatalf("%d %s", code, out)
	}
	for _, host := range []string{"localhost", "127.0.0.1", "0.0.0.0", "127.0.1.1", "127.0.0.2", "$(hostname)",
		"app.localhost", "ip6-localhost:8001", "[::1]:8001", "127.9.9.9"} {
		if !strings.Contains(host, ":") {
			host += ":8000"
		}
		if out, code := b.sh(t, "curl -sSf http://"+host); code != 0 || out != "own server\n" {
			t.Errorf("curl %s: %d %s", host, code, out)
		}
		if strings.HasPrefix(host, "127.9") {
			continue // which other libraries ask the proxy for: they know no networks
		}
		for tool, fetch := range map[string]string{
			"wget":     `wget -qO- --tries=1 "$1"`,
			"python3":  `python3 -c 'import sys,urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode(), end="")' "$1"`,
			"requests": `python3 -c 'import sys,requests; print(requests.get(sys.argv[1]).text, end="")' "$1"`,
			"node":     `node -e 'fetch(process.argv[1]).then(r=>r.text()).then(t=>process.stdout.write(t))' "$1"`,
		} {
			if _, code := b.sh(t, "command -v "+tool+" || python3 -c 'import "+tool+"'"); code != 0 {
				continue
			}
			if out, code := b.sh(t, "set -- http://"+host+"; "+fetch); code != 0 || out != "own server\n" {
				t.Errorf("%s %s: %d %s", tool, host, code, out)
			}
		}
	}
	if out, code := b.sh(t,
		`python3 -c 'import urllib.request; urllib.request.urlopen("http://127.9.9.9:8000")' 2>&1; curl -sx $http_proxy --noproxy '' http://127.9.9.9:8000`); !strings.Contains(out, "403") ||
		!strings.Contains(out, "your own machine") {
		t.Errorf("what asks the gateway: %d %s", code, out)
	}
	if out, code := b.sh(t, "curl -sS http://b.test:8000"); code == 0 && strings.Contains(out, "own server") {
		t.Errorf("the control: another host's name leads here: %s", out)
	}
}

// browsers opens pages in those that the host has, as a person's tests do. CI has none: they are larger than all
// else there.
func browsers(t *testing.T, b *box, good, bad, want string) {
	for name, command := range map[string]string{
		"chromium": "timeout 80 chromium --headless --no-sandbox --disable-gpu --dump-dom 2>/dev/null ",
	} {
		t.Run(name, func(t *testing.T) {
			if _, code := b.sh(t, "command -v "+name); code != 0 {
				t.Skip("the sandbox has no ", name)
			}
			if out, code := b.sh(t, command+good); code != 0 || !strings.Contains(out, want) {
				t.Errorf("%s: %d %s", good, code, out)
			}
			if out, _ := b.sh(t, command+bad); strings.Contains(out, "hello from") {
				t.Errorf("%s: %s", bad, out)
			}
		})
	}
}

// Broken if a common tool cannot reach an allowed server, with or without knowing of the proxy, or reaches one
// that is not allowed.
func TestTools(t *testing.T) {
	r := newRig(t)
	cfg := &outboard.SessionConfig{Env: outboard.EnvConfig{Networking: outboard.Networking{Mode: "limited",
		Rules: []outboard.NetRule{anyPort("a.test")}}}}
	r.mux.HandleFunc("/hello", func(w http.ResponseWriter, q *http.Request) { fmt.Fprint(w, "hello from ", q.Host) })
	r.mux.HandleFunc("/{$}", func(w http.ResponseWriter, q *http.Request) { fmt.Fprint(w, "root of ", q.Host) })
	serveGit(t, r)
	b := realBox(t, r, cfg)
	good, bad := r.https("a.test", "/hello"), r.https("b.test", "/hello")
	goodPlain := r.http("a.test", "/hello")
	want := fmt.Sprintf("hello from a.test:%d", portOf(r.secure))
	py := `python3 -c 'import sys,urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())' `
	node := `node -e 'fetch(process.argv[1]).then(r=>{if(!r.ok)throw r.status;return r.text()}).then(console.log,e=>{console.error(e);process.exit(1)})' `
	nodeHTTP := `node -e 'const u=process.argv[1];require(u.split(":")[0]).get(u,r=>{if(r.statusCode!=200)process.exit(1);r.pipe(process.stdout)}).on("error",e=>{console.error(e);process.exit(1)})' `
	for name, tc := range map[string]struct{ tool, cmd string }{
		"curl": {"curl", "curl -sSf "}, "wget": {"wget", "wget -qO- --tries=1 "}, "python3": {"python3",
			py}, "node fetch": {"node", node}, "node https": {"node", nodeHTTP},
	} {
		t.Run(name, func(t *testing.T) {
			b.has(t, tc.tool)
			for _, pre := range []string{"", bare} {
				if out, code := b.sh(t, pre+tc.cmd+good); code != 0 || !strings.Contains(out, want) {
					t.Errorf("%s%s: %d %s", pre, good, code, out)
				}
				if out, code := b.sh(t, pre+tc.cmd+goodPlain); code != 0 ||
					!strings.Contains(out, "hello from a.test") {
					t.Errorf("%s%s: %d %s", pre, goodPlain, code, out)
				}
				if out, code := b.sh(t, pre+tc.cmd+bad); code == 0 || strings.Contains(out, "hello from") {
					t.Errorf("%s%s: %d %s", pre, bad, code, out)
				}
			}
		})
	}
	t.Run("no path", func(t *testing.T) { // urllib names a proxy no more than http://HOST
		b.has(t, "python3")
		if out, code := b.sh(t, py+strings.TrimSuffix(r.http("a.test", "/"), "/")); code != 0 ||
			!strings.Contains(out, "root of a.test") {
			t.Errorf("%d %s", code, out)
		}
	})
	t.Run("without any variable", func(t *testing.T) {
		b.has(t, "curl")
		if out, code := b.sh(t, "env -i /usr/bin/curl -sSf "+good); code != 0 || out != want {
			t.Errorf("%d %s", code, out)
		}
	})
	t.Run("git", func(t *testing.T) {
		b.has(t, "git")
		for i, pre := range []string{"", bare} {
			script := fmt.Sprintf(`%scd /workspace && git clone -q %s r%d && cd r%d && git config user.email a@b && git config user.name a &&
				head -c 8000000 /dev/urandom > big && git add big && git commit -qm big && git push -q origin HEAD:refs/heads/b%d && git ls-remote origin b%d`,
				pre, r.https("a.test", "/git/repo.git"), i, i, i, i)
			if out, code := b.sh(t, script); code != 0 || !strings.Contains(out, "refs/heads/b") {
				t.Errorf("%q: %d %s", pre, code, out)
			}
		}
	})
	t.Run("nss", func(t *testing.T) {
		b.has(t, "certutil")
		const list = "certutil -L -d sql:$HOME/.pki/nssdb"
		if out, code := b.sh(t, list+" && certutil -V -u L -n \"$("+list+" | sed -n 's/ *C,, *$//p')\" -d "+
			"sql:$HOME/.pki/nssdb"); code != 0 ||
			!strings.Contains(out, "C,,") || !strings.Contains(out, "certificate is valid") {
			t.Errorf("%d %s", code, out)
		}
	})
	t.Run("browsers", func(t *testing.T) { browsers(t, b, good, bad, want) })
	t.Run("own servers", func(t *testing.T) { ownServers(t, b) })
	t.Run("java", func(t *testing.T) {
		b.has(t, "javac")
		if out, code := b.sh(t, "cd /workspace && java -version 2>said && ! grep Picked said"); code != 0 {
			t.Errorf("Java's standard error has what no program said: %s", out)
		}
		src := `import java.net.*;import java.net.http.*;class T{public static void main(String[] a)throws Exception{System.out.println(HttpClient.newHttpClient()` +
			`.send(HttpRequest.newBuilder(URI.create(a[0])).build(),HttpResponse.BodyHandlers.ofString()).body());}}`
		if out, code := b.sh(t, "cd /workspace && echo '"+src+"' > T.java && java T.java "+good); code != 0 ||
			!strings.Contains(out, want) {
			t.Errorf("%d %s", code, out)
		}
	})
	t.Run("go", func(t *testing.T) {
		bin := filepath.Join(t.TempDir(), "fetch")
		src := filepath.Join(t.TempDir(), "main.go")
		code := `package main; import ("io";"net/http";"os"); func main() { r, err := http.Get(os.Args[1]); if err != nil || r.StatusCode != 200 { println(err); os.Exit(1) }; io.Copy(os.Stdout, r.Body) }`
		if err := os.WriteFile(src, []byte(code), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("go", "build", "-o", bin, src)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		f, err := os.Open(bin)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := b.Put(t.Context(), "/workspace/fetch", 0o755, false, f); err != nil {
			t.Fatal(err)
		}
		for _, pre := range []string{"", bare} {
			if out, code := b.sh(t, pre+"/workspace/fetch "+good); code != 0 || out != want {
				t.Errorf("%d %s", code, out)
			}
		}
	})
	t.Run("around the gateway", func(t *testing.T) {
		l, err := net.Listen("tcp", "0.0.0.0:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		port := l.Addr().(*net.TCPAddr).Port
		for _, script := range []string{
			fmt.Sprintf("curl -sS --noproxy '*' --max-time 3 http://127.0.0.1:%d/", port),
			fmt.Sprintf("exec 3<>/dev/tcp/127.0.0.1/%d", port),
			"curl -sS --noproxy '*' --max-time 3 https://1.1.1.1/", "curl -sS --max-time 3 --proxy '' " +
				"http://169.254.169.254/latest/",
			"exec 3<>/dev/tcp/169.254.169.254/80", "exec 3<>/dev/tcp/10.0.0.1/22", "exec 3<>/dev/udp/8.8.8.8/53 && " +
				"echo x >&3",
			"ping -c1 -W1 1.1.1.1",
		} {
			if out, code := b.sh(t, script); code == 0 {
				t.Errorf("%s: %s", script, out)
			}
		}
		if out, code := b.sh(t,
			"curl -sS -o /dev/null -w '%{http_code}' http://169.254.169.254/latest/meta-data/"); code != 0 ||
			out != "403" {
			t.Errorf("metadata through the proxy: %d %s", code, out)
		}
		if out, code := b.sh(t, "curl -sSf "+good); code != 0 {
			t.Errorf("control: %s", out)
		}
	})
}

// serveGit serves an empty repository that takes pushes.
func serveGit(t *testing.T, r *rig) {
	t.Helper()
	if h := gitServer(t, t.TempDir(), "repo.git"); h != nil {
		r.mux.Handle("/git/", h)
	}
}

// gitServer serves empty repositories below /git/, which take pushes; nil where there is no git.
func gitServer(t *testing.T, root string, repos ...string) http.Handler {
	t.Helper()
	out, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		return nil // the tool's own test says so
	}
	for _, repo := range repos {
		for _, args := range [][]string{{"init", "-q", "--bare", filepath.Join(root, repo)},
			{"-C", filepath.Join(root, repo), "config", "http.receivepack", "true"}} {
			if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
				t.Fatalf("git %v: %v %s", args, err, out)
			}
		}
	}
	return &cgi.Handler{Path: filepath.Join(strings.TrimSpace(string(out)), "git-http-backend"), Root: "/git",
		Env: []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=test", "GIT_CONFIG_COUNT=1",
			"GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"}}
}
