//go:build linux

package e2b

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// run starts a program in the rig's box and returns what it wrote.
func (r *rig) run(process string) string {
	r.t.Helper()
	res, err := http.DefaultClient.Do(r.envd("/process.Process/Start", "application/connect+json",
		envelope(`{"process":`+process+`}`)))
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	all, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	out, ended := "", false
	for from := bytes.NewReader(all); from.Len() > 0; {
		var said eventOut
		b, err := readEnvelope(from)
		if err != nil {
			break // the last envelope is of another kind
		}
		if err := json.Unmarshal(b, &said); err != nil {
			r.t.Fatal(err)
		}
		if said.Event.Data != nil {
			out += string(said.Event.Data.Stdout)
		}
		ended = ended || said.Event.End != nil
	}
	if !ended {
		r.t.Fatalf("%s did not end: %q", process, all)
	}
	return out
}

// If this fails, a program that E2B's sandboxes tell where it runs is told nothing here, or, in a copy of a
// sandbox, that it is in the first.
func TestWhereabouts(t *testing.T) {
	r := newRig(t)
	r.api("DELETE", "/sandboxes/"+r.box.SandboxID, "", nil)
	if status := r.api("POST", "/sandboxes", `{"templateID":"base","autoPause":true,"envVars":{"E2B_MINE":"1"}}`,
		&r.box); status != http.StatusCreated {
		t.Fatalf("creating a sandbox: %d", status)
	}
	first := r.box
	look := func(what, template string) {
		t.Helper()
		got := r.run(`{"cmd":"/bin/sh","args":["-c","env | grep ^E2B_ | sort"]}`)
		want := "E2B_MINE=1\nE2B_SANDBOX=true\nE2B_SANDBOX_ID=" + r.box.SandboxID + "\nE2B_TEMPLATE_ID=" + template +
			"\n"
		if got != want {
			t.Errorf("%s: a program has\n%swant\n%s", what, got, want)
		}
		var shown map[string]string
		req := r.envd("/envs", "", nil)
		req.Method, req.Body = "GET", nil
		if status := r.do(req, &shown); status != http.StatusOK || shown["E2B_SANDBOX_ID"] != r.box.SandboxID ||
			shown["E2B_MINE"] != "1" {
			t.Errorf("%s: %d, /envs has %v", what, status, shown)
		}
	}
	look("a new sandbox", "base")
	for _, pause := range []string{`{"memory":true}`, `{"memory":false}`} {
		if status := r.api("POST", "/sandboxes/"+first.SandboxID+"/pause", pause, nil); status != http.StatusNoContent {
			t.Fatalf("pausing: %d", status)
		}
		if status := r.api("POST", "/sandboxes/"+first.SandboxID+"/connect", `{"timeout":60}`,
			&r.box); status != http.StatusCreated {
			t.Fatalf("resuming: %d", status)
		}
		look("resumed after "+pause, "base")
	}
	var forks []forkOut
	if status := r.api("POST", "/sandboxes/"+first.SandboxID+"/fork", `{"timeout":60}`,
		&forks); status != http.StatusCreated || len(forks) != 1 || forks[0].Sandbox == nil {
		t.Fatalf("forking: %d %+v", status, forks)
	}
	r.box = *forks[0].Sandbox
	defer r.api("DELETE", "/sandboxes/"+first.SandboxID, "", nil)
	if r.box.SandboxID == first.SandboxID || strings.TrimSpace(r.box.SandboxID) == "" {
		t.Fatalf("a copy is called %q", r.box.SandboxID)
	}
	look("a copy", "base")
}
