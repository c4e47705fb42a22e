package outboardtest_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/outboardtest"
)

// Fails if a started server does not answer, or does not run a turn with a tool call to its end.
func TestStart(t *testing.T) {
	s := outboardtest.Start(t, outboardtest.Options{})
	call := func(path string, body any) map[string]any {
		t.Helper()
		b, _ := json.Marshal(body)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+path, bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+s.Key)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d %s %v", path, resp.StatusCode, raw, err)
		}
		var v map[string]any
		if err := json.Unmarshal(raw, &v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	agent := call("/v1/agents", map[string]any{"name": "a", "model": "script/steps",
		"tools": []any{map[string]any{"type": "agent_toolset_20260401"}}})
	env := call("/v1/environments", map[string]any{"name": "e"})
	msg := map[string]any{"type": "user.message",
		"content": []any{map[string]any{"type": "text", "text": "- bash: echo hi\n- say: done\n"}}}
	ses := call("/v1/sessions", map[string]any{"agent": agent["id"], "environment_id": env["id"],
		"initial_events": []any{msg}})
	id := outboard.SessionID(ses["id"].(string))
	deadline := time.AfterFunc(30*time.Second, func() { t.Error("the turn did not end in 30 s"); s.Stop() })
	defer deadline.Stop()
	for e, err := range s.Store.Follow(t.Context(), id, 0) {
		if err != nil {
			t.Fatal(err)
		}
		t.Log(e.Seq, e.Type, string(e.Data))
		if e.Type == outboard.TypeTurnEnded {
			return
		}
	}
}
