package main

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// What --in says must be where the gateway replaces a placeholder, and nowhere else: a secret in another place
// of a request is in somebody's log.
func TestSecretIn(t *testing.T) {
	t.Parallel()
	const secret = "12345:the/real one"
	var mu sync.Mutex
	var got []string
	up := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, r.URL.EscapedPath()+" "+r.URL.Query().Get("q")+" "+r.Header.Get("X-Token"))
	}))
	defer up.Close()
	at, err := url.Parse(up.URL)
	if err != nil {
		t.Fatal(err)
	}
	h := newSeat(t)
	put := func(name, text string) string {
		path := filepath.Join(h.dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ca := put("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: up.Certificate().Raw})))
	h.env = append(h.env, "OUTBOARD_CONFIG="+put("config.yaml",
		"egress:\n  private_networks: [127.0.0.0/8]\n  ca_files: ["+ca+"]\n"))
	set := func(args ...string) (string, int) {
		cmd := h.command(t.Context(), append([]string{"secret", "set"}, args...)...)
		cmd.Stdin = strings.NewReader(secret + "\n")
		out, _ := cmd.CombinedOutput() // the exit code says it
		return string(out), cmd.ProcessState.ExitCode()
	}
	where := []string{"--host", "127.0.0.1", "--port", at.Port()}
	for _, args := range [][]string{{"BOT", "--in", "path"}, {"GKEY", "--in", "query"}, {"BOTH", "--in", "path,header"},
		{"USUAL"}} {
		if text, exit := set(slices.Concat(args, []string{"--env"}, where)...); exit != 0 {
			t.Fatalf("%v: exit %d: %s", args, exit, text)
		}
	}
	if text, exit := set("NOT", "--env", "--in", "cookie", "--host", "127.0.0.1"); exit != exitUsage ||
		!strings.Contains(text, "header, body, path, query") {
		t.Errorf("a place that is none: exit %d: %s", exit, text)
	}
	if text, exit := set("not", "--in", "path", "--host", "127.0.0.1"); exit != exitUsage ||
		!strings.Contains(text, "secret set NAME --env --in path") {
		t.Errorf("without --env: exit %d: %s", exit, text)
	}
	escaped := "12345:the%2Freal%20one"
	var task strings.Builder
	tries := []struct{ request, arrives string }{
		{"/bot$BOT/getMe", "/bot" + escaped + "/getMe  "}, {"/?q=$GKEY", "/ " + secret +
			" "}, {"/u/$BOTH -H \"X-Token: $BOTH\"", "/u/" + escaped + "  " + secret},
		{"/usual -H \"X-Token: $USUAL\"", "/usual  " + secret}, {"/bot$GKEY/getMe", ""}, {"/?q=$BOT",
			""}, {"/bot$USUAL/getMe", ""}, {"/x -H \"X-Token: $BOT\"", ""},
	}
	for _, c := range tries {
		fmt.Fprintf(&task, "- bash: %q\n", "curl -s --noproxy '' -m 20 -w ' status=%{http_code}' "+up.URL+c.request)
	}
	text, exit := h.run("run", "--from", "none", "-m", "script/steps", "--vault", "default", "--allow", at.Host, "--",
		task.String()+"- say: done")
	if exit != 0 || strings.Contains(text, "the/real") {
		t.Fatalf("exit %d:\n%s", exit, text)
	}
	var want []string
	for _, c := range tries {
		if c.arrives != "" {
			want = append(want, c.arrives)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("arrived:\n%s\nwant:\n%s\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"), text)
	}
	log, _ := h.run("net", "log", nameRE.FindString(text))
	if strings.Contains(log, "12345") || strings.Count(log, "where that is not replaced") != 4 {
		t.Errorf("the record has the secret, or no reason:\n%s", log)
	}
}
