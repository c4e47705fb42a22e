package llm

import (
	"context"
	"encoding/json"
	"net/url"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/shared"
	"github.com/outboard-dev/outboard"
)

// chatModel speaks OpenAI Chat Completions, to any server that does: vLLM, Ollama, gateways. It asks for little
// and takes what comes.
type chatModel struct{ endpoint }

// Generate implements Model.
func (m *chatModel) Generate(ctx context.Context, req Request, emit func(Delta)) (*Response, error) {
	x := m.begin(ctx, emit)
	defer x.end()
	body, err := m.body(x.ctx, req)
	if err != nil {
		return nil, x.fail(err, openAIError)
	}
	service := openai.NewChatCompletionService(x.openAIOptions()...)
	stream := service.NewStreaming(x.ctx, openai.ChatCompletionNewParams{},
		option.WithRequestBody("application/json", body))
	defer stream.Close()
	acc := chatStream{x: x, ids: newCallIDs(req.History)}
	for stream.Next() {
		if err := acc.chunk(stream.Current()); err != nil {
			return nil, x.fail(err, openAIError)
		}
	}
	if err := stream.Err(); err != nil {
		return nil, x.fail(err, openAIError)
	}
	resp, err := acc.response()
	if err != nil {
		return nil, x.fail(err, openAIError)
	}
	return resp, nil
}

// body is the request: the SDK's parameters, with the messages put in as bytes.
func (m *chatModel) body(ctx context.Context, req Request) ([]byte, error) {
	p := openai.ChatCompletionNewParams{Model: m.model.Name, ReasoningEffort: shared.ReasoningEffort(req.Effort),
		StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: param.NewOpt(true)}}
	if req.MaxOutput > 0 || m.model.Output > 0 {
		if m.vendors() {
			p.MaxCompletionTokens = param.NewOpt(m.maxTokens(req))
		} else {
			p.MaxTokens = param.NewOpt(m.maxTokens(req)) // the older name, which every server knows
		}
	}
	if m.vendors() && req.CacheKey != "" {
		p.PromptCacheKey = param.NewOpt(req.CacheKey)
	}
	for _, t := range req.Tools {
		f := param.Override[shared.FunctionDefinitionParam](json.RawMessage(object{
			{"name", appendString(nil, t.Name)},
			{"description", appendString(nil, t.Description)},
			{"parameters", t.InputSchema},
		}.appendTo(nil)))
		p.Tools = append(p.Tools, openai.ChatCompletionFunctionTool(f))
	}
	head, err := json.Marshal(p)
	if err != nil {
		return nil, outboard.Errorf(outboard.Internal, "encoding the request: %w", err)
	}
	body, err := parseObject(head)
	if err != nil {
		return nil, err
	}
	messages, err := m.messages(ctx, req)
	if err != nil {
		return nil, err
	}
	body.set("messages", messages)
	return body.appendTo(nil), nil
}

// vendors reports whether the server is OpenAI's own, which knows fields that compatible ones may refuse.
func (m *chatModel) vendors() bool {
	u, err := url.Parse(m.provider.BaseURL)
	return err == nil && u.Hostname() == "api.openai.com"
}

// messages is the JSON list of the conversation.
func (m *chatModel) messages(ctx context.Context, req Request) ([]byte, error) {
	var items [][]byte
	if req.System != "" {
		head, err := encodeAll([]openai.ChatCompletionMessageParamUnion{openai.SystemMessage(req.System)})
		if err != nil {
			return nil, err
		}
		items = head
	}
	exact := false
	for _, e := range entries(req.History) {
		var more [][]byte
		var err error
		if e.assistant != nil {
			var one []byte
			one, exact, err = m.assistant(ctx, req, e.assistant)
			more = [][]byte{one}
		} else {
			more, err = m.user(ctx, req, e, exact)
		}
		if err != nil {
			return nil, err
		}
		items = append(items, more...)
	}
	return joinList(items), nil
}

// assistant is an assistant message: as it came, or rebuilt without reasoning.
func (m *chatModel) assistant(ctx context.Context, req Request,
	msg *outboard.Message) (message []byte, exact bool, err error) {
	if m.replays(msg) {
		if raw, err := unpackRaw(ctx, req, *msg); err != nil || len(raw) > len("{}") {
			return raw, true, err
		}
	}
	text, err := plainText(ctx, req, msg.Content)
	if err != nil {
		return nil, false, err
	}
	a := openai.ChatCompletionAssistantMessageParam{}
	if text != "" || len(msg.Uses) == 0 {
		a.Content.OfString = param.NewOpt(text)
	}
	for _, u := range msg.Uses {
		in, err := useInput(ctx, req, u)
		if err != nil {
			return nil, false, err
		}
		a.ToolCalls = append(a.ToolCalls, openai.ChatCompletionMessageToolCallUnionParam{
			OfFunction: &openai.ChatCompletionMessageFunctionToolCallParam{ID: safeID(u.ID),
				Function: openai.ChatCompletionMessageFunctionToolCallFunctionParam{Name: safeName(u.Name),
					Arguments: string(in)}}})
	}
	message, err = json.Marshal(openai.ChatCompletionMessageParamUnion{OfAssistant: &a})
	if err != nil {
		return nil, false, outboard.Errorf(outboard.Internal, "encoding the response at %d: %w", msg.Seq, err)
	}
	return message, false, nil
}

// user is the messages of a user entry: one for each result, then one for all that was said. A result is text
// only on this wire, so its images and documents come after the results.
func (m *chatModel) user(ctx context.Context, req Request, e entry, exact bool) ([][]byte, error) {
	var list []openai.ChatCompletionMessageParamUnion
	var said []part
	for _, r := range e.results {
		parts, err := load(ctx, req, r.Content)
		if err != nil {
			return nil, err
		}
		id := r.ToolUseID
		if !exact {
			id = safeID(id)
		}
		var texts []part
		for _, p := range markError(parts, r.IsError) {
			if _, ok := onlyText([]part{p}); ok {
				texts = append(texts, p)
				continue
			}
			texts = append(texts, part{kind: "text", text: "[outboard] The " + p.kind +
				" of this result follows the results."})
			said = append(said, part{kind: "text", text: "[outboard] The " + p.kind + " of the result of " + id + ":"},
				p)
		}
		text, _ := onlyText(texts)
		list = append(list, openai.ToolMessage(text, id))
	}
	for _, s := range e.said {
		parts, err := s.parts(ctx, req)
		if err != nil {
			return nil, err
		}
		said = append(said, parts...)
	}
	if text, ok := onlyText(said); ok && text != "" {
		list = append(list, openai.UserMessage(text)) // plain text: some servers know nothing else
	} else if !ok {
		var content []openai.ChatCompletionContentPartUnionParam
		for _, p := range said {
			content = append(content, chatContent(p))
		}
		list = append(list, openai.UserMessage(content))
	}
	return encodeAll(list)
}

// chatContent is a part as content of a user message.
func chatContent(p part) openai.ChatCompletionContentPartUnionParam {
	switch {
	case p.kind == "image":
		return openai.ImageContentPart(openai.ChatCompletionContentPartImageImageURLParam{URL: p.dataURL()})
	case p.kind == "pdf" && p.url == "":
		return openai.FileContentPart(openai.ChatCompletionContentPartFileFileParam{FileData: param.NewOpt(p.dataURL()),
			Filename: param.NewOpt(p.filename())})
	}
	return openai.TextContentPart(p.plain())
}
