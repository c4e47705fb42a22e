package llm

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
	"github.com/outboard-dev/outboard"
)

// openAIBase is the vendor's own server.
const openAIBase = "https://api.openai.com/v1/"

// responsesModel speaks OpenAI Responses. Nothing is stored at the provider: reasoning comes encrypted and goes
// back with the conversation.
type responsesModel struct{ endpoint }

// Generate implements Model.
func (m *responsesModel) Generate(ctx context.Context, req Request, emit func(Delta)) (*Response, error) {
	x := m.begin(ctx, emit)
	defer x.end()
	body, err := m.body(x.ctx, req)
	if err != nil {
		return nil, x.fail(err, openAIError)
	}
	service := responses.NewResponseService(x.openAIOptions()...)
	stream := service.NewStreaming(x.ctx, responses.ResponseNewParams{},
		option.WithRequestBody("application/json", body))
	defer stream.Close()
	acc := responsesStream{x: x, ids: newCallIDs(req.History)}
	for stream.Next() {
		if err := acc.event(stream.Current()); err != nil {
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

// openAIOptions are the SDK options of both OpenAI wires. The services, unlike the SDK's client, read no environment.
func (x *exchange) openAIOptions() []option.RequestOption {
	opts := []option.RequestOption{
		option.WithBaseURL(orDefault(x.provider.BaseURL, openAIBase)),
		option.WithHTTPClient(x.httpClient()),
		option.WithMaxRetries(0), // the harness retries, and records it
	}
	if !x.provider.APIKey.Secret.IsZero() {
		opts = append(opts, option.WithAPIKey(x.provider.APIKey.Reveal()))
	}
	return opts
}

// openAIError explains an error of the SDK, or returns nil.
func openAIError(err error) *Error {
	if e, ok := errors.AsType[*openai.Error](err); ok {
		kind := e.Code
		if kind == "" || statusOf(kind) == 0 && statusOf(e.Type) != 0 {
			kind = e.Type
		}
		message := e.Message
		if message == "" { // a gateway's own shape, or no JSON at all
			b, _ := io.ReadAll(io.LimitReader(e.Response.Body, 4*maxMessage))
			message = string(b)
		}
		return providerError(e.StatusCode, kind, message, e.Response)
	}
	if e, ok := errors.AsType[*ssestream.StreamError](err); ok {
		return openAIEventError(e.Event.Data)
	}
	return nil
}

// openAIEventError explains an error that came as an event: an object with the error under "error", or a bare one.
func openAIEventError(data []byte) *Error {
	o, err := parseObject(data)
	if err != nil {
		return garbage("an error that is no object")
	}
	if inner, err := parseObject(o.get("error")); err == nil {
		o = inner
	} else if text := o.text("error"); text != "" {
		return providerError(0, "", text, nil)
	}
	kind := o.text("code")
	if kind == "" || statusOf(kind) == 0 && statusOf(o.text("type")) != 0 {
		kind = o.text("type")
	}
	return providerError(0, kind, o.text("message"), nil)
}

// body is the request: the SDK's parameters, with the input put in as bytes.
func (m *responsesModel) body(ctx context.Context, req Request) ([]byte, error) {
	p := responses.ResponseNewParams{Model: m.model.Name, Store: param.NewOpt(false)}
	if req.System != "" {
		p.Instructions = param.NewOpt(req.System)
	}
	if req.CacheKey != "" {
		p.PromptCacheKey = param.NewOpt(req.CacheKey)
	}
	if req.MaxOutput > 0 || m.model.Output > 0 {
		p.MaxOutputTokens = param.NewOpt(m.maxTokens(req))
	}
	if m.thinking != ThinkingOff {
		p.Include = []responses.ResponseIncludable{responses.ResponseIncludableReasoningEncryptedContent}
		p.Reasoning = shared.ReasoningParam{Effort: shared.ReasoningEffort(req.Effort),
			Summary: shared.ReasoningSummaryAuto}
	}
	if req.Speed == "fast" {
		p.ServiceTier = responses.ResponseNewParamsServiceTierPriority
	}
	for _, t := range req.Tools {
		f := param.Override[responses.FunctionToolParam](json.RawMessage(object{
			{"type", json.RawMessage(`"function"`)},
			{"name", appendString(nil, t.Name)},
			{"description", appendString(nil, t.Description)},
			{"parameters", t.InputSchema},
			{"strict", json.RawMessage("false")}, // the wire's default would change the schema's meaning
		}.appendTo(nil)))
		p.Tools = append(p.Tools, responses.ToolUnionParam{OfFunction: &f})
	}
	head, err := json.Marshal(p)
	if err != nil {
		return nil, outboard.Errorf(outboard.Internal, "encoding the request: %w", err)
	}
	body, err := parseObject(head)
	if err != nil {
		return nil, err
	}
	input, err := m.input(ctx, req)
	if err != nil {
		return nil, err
	}
	body.set("input", input)
	return body.appendTo(nil), nil
}

// input is the JSON list of input items.
func (m *responsesModel) input(ctx context.Context, req Request) ([]byte, error) {
	var items [][]byte
	exact := false
	for _, e := range entries(req.History) {
		var more [][]byte
		var err error
		if e.assistant != nil {
			more, exact, err = m.assistant(ctx, req, e.assistant)
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

// joinList makes a JSON list of JSON values.
func joinList(items [][]byte) []byte {
	out := []byte{'['}
	for i, b := range items {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, b...)
	}
	return append(out, ']')
}

// assistant is the output items of a response: as they came, or rebuilt without reasoning.
func (m *responsesModel) assistant(ctx context.Context, req Request,
	msg *outboard.Message) (items [][]byte, exact bool, err error) {
	if m.replays(msg) {
		raw, err := unpackRaw(ctx, req, *msg)
		if err != nil {
			return nil, false, err
		}
		if len(raw) > len("[]") {
			return [][]byte{raw[1 : len(raw)-1]}, true, nil // the list's members, to go into the list of all
		}
	}
	parts, err := load(ctx, req, msg.Content)
	if err != nil {
		return nil, false, err
	}
	var list []responses.ResponseInputItemUnionParam
	for _, p := range parts {
		list = append(list, responses.ResponseInputItemParamOfMessage(p.plain(),
			responses.EasyInputMessageRoleAssistant))
	}
	for _, u := range msg.Uses {
		in, err := useInput(ctx, req, u)
		if err != nil {
			return nil, false, err
		}
		list = append(list, responses.ResponseInputItemParamOfFunctionCall(string(in), safeID(u.ID), safeName(u.Name)))
	}
	items, err = encodeAll(list)
	return items, false, err
}

// user is the items of a user entry, results first.
func (m *responsesModel) user(ctx context.Context, req Request, e entry, exact bool) ([][]byte, error) {
	var list []responses.ResponseInputItemUnionParam
	for _, r := range e.results {
		item, err := m.result(ctx, req, r, exact)
		if err != nil {
			return nil, err
		}
		list = append(list, item)
	}
	for _, s := range e.said {
		role := responses.EasyInputMessageRoleUser
		if s.role == "system" {
			role, s.label = responses.EasyInputMessageRoleDeveloper, ""
		}
		parts, err := s.parts(ctx, req)
		if err != nil {
			return nil, err
		}
		var content responses.ResponseInputMessageContentListParam
		for _, p := range parts {
			content = append(content, responsesContent(p))
		}
		if len(content) > 0 {
			list = append(list, responses.ResponseInputItemParamOfMessage(content, role))
		}
	}
	return encodeAll(list)
}

// result is a tool's output: text, or a list when there is more than text. The wire has no flag for an error.
func (m *responsesModel) result(ctx context.Context, req Request, r outboard.ToolResult,
	exact bool) (responses.ResponseInputItemUnionParam, error) {
	parts, err := load(ctx, req, r.Content)
	if err != nil {
		return responses.ResponseInputItemUnionParam{}, err
	}
	parts = markError(parts, r.IsError)
	var list responses.ResponseFunctionCallOutputItemListParam
	for _, p := range parts {
		list = append(list, responsesOutput(p))
	}
	out := responses.ResponseInputItemFunctionCallOutputOutputUnionParam{OfResponseFunctionCallOutputItemArray: list}
	if text, ok := onlyText(parts); ok {
		out = responses.ResponseInputItemFunctionCallOutputOutputUnionParam{OfString: param.NewOpt(text)}
	}
	id := r.ToolUseID
	if !exact {
		id = safeID(id)
	}
	return responses.ResponseInputItemUnionParam{OfFunctionCallOutput: &responses.ResponseInputItemFunctionCallOutputParam{
		CallID: param.NewOpt(id), Output: out}}, nil
}

// encodeAll encodes each of a list.
func encodeAll[T any](list []T) ([][]byte, error) {
	var out [][]byte
	for _, v := range list {
		b, err := json.Marshal(v)
		if err != nil {
			return nil, outboard.Errorf(outboard.Internal, "encoding the conversation: %w", err)
		}
		out = append(out, b)
	}
	return out, nil
}

// responsesContent is a part as content of a message.
func responsesContent(p part) responses.ResponseInputContentUnionParam {
	switch p.kind {
	case "image":
		return responses.ResponseInputContentUnionParam{OfInputImage: &responses.ResponseInputImageParam{
			Detail: responses.ResponseInputImageDetailAuto, ImageURL: param.NewOpt(p.dataURL())}}
	case "pdf":
		f := responses.ResponseInputFileParam{}
		if p.url != "" {
			f.FileURL = param.NewOpt(p.url)
		} else {
			f.FileData, f.Filename = param.NewOpt(p.dataURL()), param.NewOpt(p.filename())
		}
		return responses.ResponseInputContentUnionParam{OfInputFile: &f}
	}
	return responses.ResponseInputContentParamOfInputText(p.plain())
}

// responsesOutput is a part as content of a tool's output.
func responsesOutput(p part) responses.ResponseFunctionCallOutputItemUnionParam {
	switch p.kind {
	case "image":
		return responses.ResponseFunctionCallOutputItemUnionParam{OfInputImage: &responses.ResponseInputImageContentParam{
			ImageURL: param.NewOpt(p.dataURL())}}
	case "pdf":
		f := responses.ResponseInputFileContentParam{}
		if p.url != "" {
			f.FileURL = param.NewOpt(p.url)
		} else {
			f.FileData, f.Filename = param.NewOpt(p.dataURL()), param.NewOpt(p.filename())
		}
		return responses.ResponseFunctionCallOutputItemUnionParam{OfInputFile: &f}
	}
	return responses.ResponseFunctionCallOutputItemUnionParam{OfInputText: &responses.ResponseInputTextContentParam{Text: p.plain()}}
}
