//go:build linux

package fleet

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
)

// distribution is this host's own: its suite, and where its apt has packages from.
func distribution(t *testing.T) (suite string, mirror *url.URL) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("debootstrap takes root")
	}
	if _, err := exec.LookPath("debootstrap"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("install debootstrap to run this: ", err)
	}
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		t.Skip(err)
	}
	name := regexp.MustCompile(`(?m)^VERSION_CODENAME=(.*)$`).FindSubmatch(release)
	if name == nil {
		t.Skip("this host has no suite")
	}
	suite = string(name[1])
	out, err := exec.CommandContext(t.Context(), "apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)",
		"Created-By: Packages").Output()
	if err != nil {
		t.Skip("this host's apt says nothing: ", err)
	}
	for line := range strings.Lines(string(out)) {
		if uri, ok := strings.CutPrefix(strings.TrimSpace(line), suite+" "); ok {
			if mirror, err = url.Parse(uri); err != nil {
				t.Fatal(err)
			}
			reachable(t, mirror.JoinPath("dists", suite, "Release").String())
			return suite, mirror
		}
	}
	t.Skip("this host's apt has nothing of ", suite)
	return "", nil
}

// reachable skips where there is no network.
func reachable(t *testing.T, address string) {
	t.Helper()
	client := &http.Client{Timeout: 10 * time.Second}
	resp, err := client.Head(address)
	if err == nil {
		resp.Body.Close()
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal(err)
	}
	t.Skip("the mirror is not reachable: ", err)
}

// between is a mirror that asks another one and counts. spoil changes what it answers.
func between(t *testing.T, mirror *url.URL, spoil func(*http.Response) error) (address string, asked *atomic.Int64) {
	t.Helper()
	asked = new(atomic.Int64)
	proxy := &httputil.ReverseProxy{ModifyResponse: spoil, Rewrite: func(r *httputil.ProxyRequest) {
		asked.Add(1)
		r.SetURL(mirror)
	}}
	srv := httptest.NewServer(proxy)
	t.Cleanup(srv.Close)
	return srv.URL, asked
}

// baseFleet is a fleet that makes systems from a mirror.
func baseFleet(t *testing.T, mirror string) *Fleet {
	t.Helper()
	r, store := newRig(t), images(t)
	r.provider = nativeProvider(t)
	return r.fleet(func(c *Config) { c.Images, c.Mirrors = store, map[string]string{"debootstrap": mirror} })
}

func baseEnv(suite string) outboard.EnvConfig {
	return outboard.EnvConfig{Kind: "cloud", Rootfs: "debootstrap:" + suite,
		Networking: outboard.Networking{Mode: "none"}}
}

// If this failed, an environment could not begin with a system of packages, it would be made for each sandbox,
// have something of the host or a way to be root in it, or stay on the disk for ever.
func TestDebootstrap(t *testing.T) {
	if testing.Short() {
		t.Skip("a system is more than a hundred packages")
	}
	suite, real := distribution(t)
	mirror, asked := between(t, real, nil)
	f := baseFleet(t, mirror)
	const look = `. /etc/os-release; echo "$VERSION_CODENAME"; id -un; dpkg --audit; dpkg-query -W -f '${db:Status-Abbrev}\n' | sort | uniq -c; apt-get --version | head -1 | cut -c1-4
find / -xdev \( -type f -perm /6000 -o -type b -o -type p \) 2>/dev/null; ls -d /debootstrap /var/cache/apt/archives/*.deb 2>/dev/null; ls /usr/bin | grep -cxE 'git|go|crun'; true`
	outs := make([]string, 2)
	var all sync.WaitGroup
	for i := range outs {
		all.Go(func() {
			var err error
			if outs[i], err = boxWith(t, f, baseEnv(suite), "/bin/sh", "-c", look); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	want := regexp.MustCompile(`^` + suite + `\nuser\n +([0-9]+) ii \napt \n0\n$`)
	for _, out := range outs {
		m := want.FindStringSubmatch(out)
		if m == nil {
			t.Fatalf("inside is %q; want %s", out, want)
		}
		if n, _ := strconv.Atoi(m[1]); n < 50 {
			t.Errorf("%d packages are installed", n)
		}
	}
	if packages := int64(50); asked.Load() < packages || asked.Load() > 5*packages {
		t.Errorf("the mirror was asked %d times, for one system", asked.Load())
	}
	asked.Store(0)
	if _, err := boxWith(t, f, baseEnv(suite), "true"); err != nil || asked.Load() != 0 {
		t.Errorf("a sandbox of a system that is here: %v; the mirror was asked %d times", err, asked.Load())
	}
	if left, _ := filepath.Glob(filepath.Join(f.cfg.Images.Dir("x"), "../../tmp/*")); len(left) > 0 {
		t.Errorf("half-made is %v", left)
	}
	pruned, err := f.PruneImages(t.Context(), time.Now().Add(time.Hour))
	if err != nil || pruned.Layers != 2 {
		t.Errorf("pruned are %d layers: %v", pruned.Layers, err)
	}
}

// If this failed, a system would be made of what nobody vouches for, or a failure would be a riddle or leave
// something behind.
func TestDebootstrapFails(t *testing.T) {
	suite, real := distribution(t)
	released := false
	spoiled, _ := between(t, real, func(r *http.Response) error {
		if !strings.HasSuffix(r.Request.URL.Path, "Release") {
			return nil
		}
		released = true
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		b = bytes.Replace(b, []byte("Codename: "+suite), []byte("Codename:  "+suite), 1)
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
		r.Header.Set("Content-Length", strconv.Itoa(len(b)))
		return nil
	})
	whole, asked := between(t, real, nil)
	gone := httptest.NewServer(nil)
	gone.Close()
	for what, c := range map[string]struct{ mirror, suite, want string }{
		"a changed release":  {spoiled, suite, "ignature"},
		"no such suite":      {whole, "no-such-suite", "No such script"},
		"not of this mirror": {whole, "wheezy", "debootstrap failed"},
		"no mirror":          {gone.URL, suite, "debootstrap failed"},
		"a variant":          {whole, suite + ":minbase:x", "is no system"},
		"an odd suite":       {whole, "../x", "is no system"},
		"an option":          {whole, "--help", "is no system"},
		"a user":             {"http://me:canary@" + real.Host, suite, "without a user"},
	} {
		f := baseFleet(t, c.mirror)
		_, err := boxWith(t, f, baseEnv(c.suite), "true")
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", what, err)
		}
		if left, _ := filepath.Glob(filepath.Join(f.cfg.Images.Dir("x"), "../../tmp/*")); len(left) > 0 {
			t.Errorf("%s: half-made is %v", what, left)
		}
	}
	if !released || asked.Load() == 0 {
		t.Error("no mirror was asked")
	}
}
