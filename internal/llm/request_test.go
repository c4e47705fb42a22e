package llm

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/outboard-dev/outboard"
)

// loader loads blobs from a map.
func loader(blobs map[string]string) func(context.Context, outboard.BlobRef) ([]byte, error) {
	return func(_ context.Context, ref outboard.BlobRef) ([]byte, error) {
		b, ok := blobs[ref.Digest]
		if !ok {
			return nil, outboard.Errorf(outboard.NotFound, "no blob %s", ref.Digest)
		}
		return []byte(b), nil
	}
}

// fullRequest has every role, content type and setting.
func fullRequest() Request {
	text := func(s string) []outboard.Content { return []outboard.Content{outboard.Text(s)} }
	image := outboard.Content{Type: "image", Source: &outboard.Source{Type: "base64", MediaType: "image/png",
		Data: "iVBORw0="}}
	return Request{
		System: "You are a careful engineer.", Effort: "high", Speed: "fast", Geo: "eu", CacheKey: "sthr_1",
		Tools: []Tool{
			{"bash", "Run <a> command.",
				json.RawMessage(`{"type":"object","properties":{"zeta":{"type":"string"},"command":{"type":"string"}},"required":["command"]}`)},
			{"list", "List.", json.RawMessage(`{"type":"object","properties":{}}`)}},
		Load: loader(map[string]string{"img": "\x89PNG", "txt": "a long note", "big": "long user text",
			"in": `{"command":"long"}`}),
		History: []*outboard.Message{
			{Role: "summary", Seq: 1, Content: text("Earlier we met.")},
			{Role: "user", Seq: 2, Content: []outboard.Content{outboard.Text("Look at these."), image,
				{Type: "image", Source: &outboard.Source{Type: "url", URL: "https://example.com/a.png"}},
				{Type: "document", Title: "Note", Context: "from a friend", Citations: true,
					Source: &outboard.Source{Type: "text", MediaType: "text/plain", Data: "dear all"}},
				{Type: "document", Title: "paper.pdf", Source: &outboard.Source{Type: "base64",
					MediaType: "application/pdf", Data: "JVBERi0="}},
				{Type: "document", Source: &outboard.Source{Type: "url", URL: "https://example.com/b.pdf"}},
				{Type: "document", Source: &outboard.Source{Type: "blob", MediaType: "text/plain", Encoding: "text",
					Blob: &outboard.BlobRef{Digest: "txt"}}},
				{Type: "image", Source: &outboard.Source{Type: "blob", MediaType: "image/png", Encoding: "base64",
					Blob: &outboard.BlobRef{Digest: "img"}}},
				{Type: "image", Source: &outboard.Source{Type: "file", File: "file_01x"}},
				{Type: "search_result", Title: "Found", Text: "https://example.com/c", Parts: text("the text")},
				{Type: "text", Blob: &outboard.BlobRef{Digest: "big"}}, outboard.Text(" ")}},
			{Role: "system", Seq: 3, Content: text("Be brief.")},
			{Role: "assistant", Seq: 4, Provider: "script", Model: "script/steps", Content: text("Looking."),
				Uses: []outboard.ToolUse{
					{ID: "toolu_1_1", Name: "bash", Input: json.RawMessage(`{"command":"ls <x>"}`)},
					{ID: "functions.list:1 which is odd", Name: "list"},
					{ID: "toolu_1_3", Name: "bash", Blob: &outboard.BlobRef{Digest: "in"}}}},
			{Role: "tool", Seq: 5, Results: []outboard.ToolResult{
				{ToolUseID: "functions.list:1 which is odd", Content: []outboard.Content{outboard.Text("a picture:"),
					image}},
				{ToolUseID: "toolu_1_1", IsError: true, Content: text("no such file")},
				{ToolUseID: "gone", Content: text("an orphan")}}},
			{Role: "note", Seq: 6, Content: text("The sandbox was lost.")},
			{Role: "user", Seq: 7, Content: text("Go on.")},
			{Role: "assistant", Seq: 8},
			{Role: "assistant", Seq: 9, Content: text("I go on.")},
			{Role: "assistant", Seq: 10, Content: text("Twice.")},
			{Role: "user", Seq: 11, Content: text("Good.")},
			{Role: "user", Seq: 12, Content: text("And now?")},
		},
	}
}

// If this failed, some role, content or setting would reach a provider in another form than the one it was checked in.
func TestRequestBodies(t *testing.T) {
	for _, c := range []struct{ kind, model, file string }{
		{TypeAnthropic, "claude-sonnet-5", "anthropic.json"},
		{TypeAnthropic, "claude-sonnet-4-5", "anthropic-budget.json"},
		{TypeResponses, "gpt-5", "responses.json"},
		{TypeResponses, "gpt-4o", "responses-plain.json"},
		{TypeChat, "llama", "chat.json"},
	} {
		t.Run(c.file, func(t *testing.T) {
			s := newServer(t, status(400, `{}`), status(400, `{}`))
			m := remote(t, c.kind, c.model, s)
			req := fullRequest()
			if c.file == "anthropic-budget.json" || c.file == "responses-plain.json" {
				req = hello()
				req.Effort, req.MaxOutput = "low", 5000
			}
			for range 2 {
				if _, err := m.Generate(t.Context(), req, nil); err == nil {
					t.Fatal("the reply is an error, but none came")
				}
			}
			golden(t, c.file, append([]byte(s.paths[0]+"\n"), pretty(t, s.body(0))...))
			if string(s.body(0)) != string(s.body(1)) {
				t.Error("the same request made two bodies: no prompt cache would be hit")
			}
		})
	}
}
