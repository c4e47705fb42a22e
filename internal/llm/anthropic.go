package llm

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
	"github.com/anthropics/anthropic-sdk-go/packages/param"
	"github.com/outboard-dev/outboard"
)

// anthropicBase is the vendor's own server.
const anthropicBase = "https://api.anthropic.com/"

// anthropicModel speaks Anthropic Messages.
type anthropicModel struct{ endpoint }

// Generate implements Model.
func (m *anthropicModel) Generate(ctx context.Context, req Request, emit func(Delta)) (*Response, error) {
	x := m.begin(ctx, emit)
	defer x.end()
	body, err := m.body(x.ctx, req)
	if err != nil {
		return nil, x.fail(err, anthropicError)
	}
	opts := []option.RequestOption{
		option.WithBaseURL(orDefault(m.provider.BaseURL, anthropicBase)),
		option.WithHTTPClient(x.httpClient()),
		option.WithMaxRetries(0), // the harness retries, and records it
	}
	if !m.provider.APIKey.Secret.IsZero() {
		opts = append(opts, option.WithAPIKey(m.provider.APIKey.Reveal()))
	}
	// The service, not the client: the client would read keys and addresses from this process's environment. The
	// body is made here because the SDK's encoder compacts and escapes raw JSON, which would alter what has to
	// go back byte for byte.
	service := anthropic.NewMessageService(opts...)
	stream := service.NewStreaming(x.ctx, anthropic.MessageNewParams{},
		option.WithRequestBody("application/json", body))
	defer stream.Close()
	acc := anthropicStream{x: x, ids: newCallIDs(req.History)}
	for stream.Next() {
		if err := acc.event(stream.Current()); err != nil {
			return nil, x.fail(err, anthropicError)
		}
	}
	if err := stream.Err(); err != nil {
		return nil, x.fail(err, anthropicError)
	}
	resp, err := acc.response()
	if err != nil {
		return nil, x.fail(err, anthropicError)
	}
	return resp, nil
}

// anthropicError explains an error of the SDK, or returns nil.
func anthropicError(err error) *Error {
	e, ok := errors.AsType[*anthropic.Error](err)
	if !ok {
		return nil
	}
	message := e.RawJSON()
	if o, err := parseObject([]byte(message)); err == nil {
		if inner, err := parseObject(o.get("error")); err == nil {
			message = inner.text("message")
		}
	}
	return providerError(e.StatusCode, string(e.Type()), message, e.Response)
}

// orDefault returns a base URL with the slash at its end that the SDKs resolve paths against.
func orDefault(base, vendor string) string {
	if base == "" {
		return vendor
	}
	if base[len(base)-1] != '/' {
		base += "/"
	}
	return base
}

// body is the request: the SDK's parameters, with the messages put in as bytes.
func (m *anthropicModel) body(ctx context.Context, req Request) ([]byte, error) {
	p := anthropic.MessageNewParams{Model: m.model.Name, MaxTokens: m.maxTokens(req)}
	if req.System != "" {
		p.System = []anthropic.TextBlockParam{{Text: req.System,
			CacheControl: anthropic.NewCacheControlEphemeralParam()}}
	}
	for _, t := range req.Tools {
		p.Tools = append(p.Tools, anthropic.ToolUnionParam{OfTool: &anthropic.ToolParam{Name: t.Name,
			Description: param.NewOpt(t.Description),
			InputSchema: param.Override[anthropic.ToolInputSchemaParam](t.InputSchema)}})
	}
	if n := len(p.Tools); n > 0 && req.System == "" {
		// else the system prompt's mark covers them
		p.Tools[n-1].OfTool.CacheControl = anthropic.NewCacheControlEphemeralParam()
	}
	m.think(&p, req)
	if req.Speed == "fast" {
		p.Speed = anthropic.MessageNewParamsSpeedFast
	}
	if req.Geo != "" {
		p.InferenceGeo = param.NewOpt(req.Geo)
	}
	head, err := json.Marshal(p)
	if err != nil {
		return nil, outboard.Errorf(outboard.Internal, "encoding the request: %w", err)
	}
	messages, err := m.messages(ctx, req)
	if err != nil {
		return nil, err
	}
	body, err := parseObject(head)
	if err != nil {
		return nil, err
	}
	body.set("messages", messages)
	return body.appendTo(nil), nil
}

// think sets how much the model reasons.
func (m *anthropicModel) think(p *anthropic.MessageNewParams, req Request) {
	switch m.thinking {
	case ThinkingAdaptive:
		p.Thinking = anthropic.ThinkingConfigParamUnion{OfAdaptive: &anthropic.ThinkingConfigAdaptiveParam{}}
		p.OutputConfig.Effort = anthropic.OutputConfigEffort(req.Effort)
	case ThinkingBudget:
		budget := map[string]int64{"low": 2_048, "medium": 8_192, "high": 16_384, "xhigh": 24_576,
			"max": 32_768}[req.Effort]
		if budget = min(budget, p.MaxTokens/2); budget >= 1024 { // the wire's least
			p.Thinking = anthropic.ThinkingConfigParamOfEnabled(budget)
		}
	}
}

// messages is the JSON list of the conversation.
func (m *anthropicModel) messages(ctx context.Context, req Request) ([]byte, error) {
	list := entries(req.History)
	// user entries that still get a cache mark, from the end: the new one, and the one the last request marked
	marks := 2
	bodies := make([][]byte, len(list))
	exact := make([]bool, len(list)) // an assistant entry that goes back as it came: so do its calls' ids
	for i := range list {
		if list[i].assistant != nil {
			var err error
			if bodies[i], exact[i], err = m.assistant(ctx, req, list[i].assistant); err != nil {
				return nil, err
			}
		}
	}
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].assistant != nil {
			continue
		}
		blocks, err := m.user(ctx, req, list[i], i > 0 && exact[i-1])
		if err != nil {
			return nil, err
		}
		if n := len(blocks); n > 0 && marks > 0 {
			if c := blocks[n-1].GetCacheControl(); c != nil {
				*c = anthropic.NewCacheControlEphemeralParam()
				marks--
			}
		}
		if bodies[i], err = json.Marshal(blocks); err != nil {
			return nil, outboard.Errorf(outboard.Internal, "encoding message %d: %w", i, err)
		}
	}
	out := []byte{'['}
	for i, b := range bodies {
		if i > 0 {
			out = append(out, ',')
		}
		role := "user"
		if list[i].assistant != nil {
			role = "assistant"
		}
		out = append(out, `{"role":"`+role+`","content":`...)
		out = append(append(out, b...), '}')
	}
	return append(out, ']'), nil
}

// assistant is the content of an assistant message: as it came, or rebuilt without reasoning.
func (m *anthropicModel) assistant(ctx context.Context, req Request,
	msg *outboard.Message) (content []byte, exact bool, err error) {
	if m.replays(msg) {
		if raw, err := unpackRaw(ctx, req, *msg); err != nil || len(raw) > len("[]") {
			return raw, true, err
		}
	}
	parts, err := load(ctx, req, msg.Content)
	if err != nil {
		return nil, false, err
	}
	var blocks []anthropic.ContentBlockParamUnion
	for _, p := range parts {
		blocks = append(blocks, anthropic.NewTextBlock(p.plain()))
	}
	for _, u := range msg.Uses {
		in, err := useInput(ctx, req, u)
		if err != nil {
			return nil, false, err
		}
		blocks = append(blocks, anthropic.NewToolUseBlock(safeID(u.ID), json.RawMessage(in), safeName(u.Name)))
	}
	if len(blocks) == 0 {
		blocks = append(blocks, anthropic.NewTextBlock("(no text)"))
	}
	content, err = json.Marshal(blocks)
	if err != nil {
		return nil, false, outboard.Errorf(outboard.Internal, "encoding the response at %d: %w", msg.Seq, err)
	}
	return content, false, nil
}

// user is the content of a user message, results first.
func (m *anthropicModel) user(ctx context.Context, req Request, e entry,
	exact bool) ([]anthropic.ContentBlockParamUnion, error) {
	var blocks []anthropic.ContentBlockParamUnion
	for _, r := range e.results {
		parts, err := load(ctx, req, r.Content)
		if err != nil {
			return nil, err
		}
		id := r.ToolUseID
		if !exact {
			id = safeID(id)
		}
		b := anthropic.ToolResultBlockParam{ToolUseID: id}
		if r.IsError {
			b.IsError = param.NewOpt(true)
		}
		for _, p := range parts {
			c := anthropicBlock(p)
			b.Content = append(b.Content, anthropic.ToolResultBlockParamContentUnion{OfText: c.OfText,
				OfImage:    c.OfImage,
				OfDocument: c.OfDocument, OfSearchResult: c.OfSearchResult})
		}
		blocks = append(blocks, anthropic.ContentBlockParamUnion{OfToolResult: &b})
	}
	for _, s := range e.said {
		parts, err := s.parts(ctx, req)
		if err != nil {
			return nil, err
		}
		for _, p := range parts {
			blocks = append(blocks, anthropicBlock(p))
		}
	}
	if len(blocks) == 0 {
		blocks = append(blocks, anthropic.NewTextBlock("(empty message)"))
	}
	return blocks, nil
}

// anthropicBlock is a part as a content block.
func anthropicBlock(p part) anthropic.ContentBlockParamUnion {
	switch p.kind {
	case "image":
		if p.url != "" {
			return anthropic.NewImageBlock(anthropic.URLImageSourceParam{URL: p.url})
		}
		return anthropic.NewImageBlockBase64(p.media, p.data)
	case "pdf", "document":
		d := anthropic.DocumentBlockParam{}
		switch {
		case p.kind == "document":
			d.Source.OfText = &anthropic.PlainTextSourceParam{Data: p.text}
		case p.url != "":
			d.Source.OfURL = &anthropic.URLPDFSourceParam{URL: p.url}
		default:
			d.Source.OfBase64 = &anthropic.Base64PDFSourceParam{Data: p.data}
		}
		if p.title != "" {
			d.Title = param.NewOpt(p.title)
		}
		if p.context != "" {
			d.Context = param.NewOpt(p.context)
		}
		if p.cite {
			d.Citations.Enabled = param.NewOpt(true)
		}
		return anthropic.ContentBlockParamUnion{OfDocument: &d}
	case "search_result":
		s := anthropic.SearchResultBlockParam{Source: p.text, Title: p.title}
		for _, t := range p.parts {
			s.Content = append(s.Content, anthropic.TextBlockParam{Text: t})
		}
		if p.cite {
			s.Citations.Enabled = param.NewOpt(true)
		}
		return anthropic.ContentBlockParamUnion{OfSearchResult: &s}
	}
	return anthropic.NewTextBlock(p.plain())
}
