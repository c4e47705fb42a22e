package api

import (
	"encoding/json"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// decodeEvents reads client events into inputs.
func decodeEvents(path string, raws []json.RawMessage) ([]outboard.Payload, error) {
	var out []outboard.Payload
	for i, raw := range raws {
		p, err := decodeEvent(control.At(path, i), raw)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

func decodeEvent(path string, raw json.RawMessage) (outboard.Payload, error) {
	kind, err := unionType(path, raw)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "user.message":
		blocks, err := decodeMessage(path, raw, userBlocks)
		return &outboard.InputMessage{Content: blocks}, err
	case "system.message":
		blocks, err := decodeMessage(path, raw, textBlocks)
		return &outboard.InputSystem{Content: blocks}, err
	case "user.interrupt":
		var in struct {
			Type   string            `json:"type"`
			Thread outboard.ThreadID `json:"session_thread_id"`
		}
		err := object(path, raw, &in)
		return &outboard.InputInterrupt{Scope: in.Thread}, err
	case "user.tool_confirmation":
		return decodeConfirmation(path, raw)
	case "user.custom_tool_result":
		var in struct {
			Type    string            `json:"type"`
			Call    outboard.CallID   `json:"custom_tool_use_id" need:"yes"`
			Content []json.RawMessage `json:"content"`
			IsError bool              `json:"is_error"`
		}
		if err := object(path, raw, &in); err != nil {
			return nil, err
		}
		blocks, err := decodeContent(control.Join(path, "content"), in.Content, resultBlocks)
		return &outboard.InputToolResult{Call: in.Call, Content: blocks, IsError: in.IsError, Custom: true}, err
	case "user.tool_result":
		var in struct {
			Type    string            `json:"type"`
			Call    outboard.CallID   `json:"tool_use_id" need:"yes"`
			Content []json.RawMessage `json:"content"`
			IsError bool              `json:"is_error"`
		}
		if err := object(path, raw, &in); err != nil {
			return nil, err
		}
		blocks, err := decodeContent(control.Join(path, "content"), in.Content, resultBlocks)
		return &outboard.InputToolResult{Call: in.Call, Content: blocks, IsError: in.IsError}, err
	case "user.define_outcome":
		return nil, outboard.Errorf(outboard.Unimplemented, "%s: user.define_outcome is not built yet", path)
	}
	return nil, bad("%s.type: %q is not an event a client may send", path, clip(kind)).
		WithHint("clients send user.message, user.interrupt, user.tool_confirmation, user.custom_tool_result and " +
			"system.message")
}

func decodeMessage(path string, raw json.RawMessage, allowed []string) ([]outboard.Content, error) {
	var in struct {
		Type    string            `json:"type"`
		Content []json.RawMessage `json:"content" need:"yes"`
	}
	if err := object(path, raw, &in); err != nil {
		return nil, err
	}
	if len(in.Content) == 0 {
		return nil, bad("%s.content: must not be empty", path)
	}
	return decodeContent(control.Join(path, "content"), in.Content, allowed)
}

func decodeConfirmation(path string, raw json.RawMessage) (outboard.Payload, error) {
	var in struct {
		Type    string          `json:"type"`
		Call    outboard.CallID `json:"tool_use_id" need:"yes"`
		Result  string          `json:"result" need:"yes"`
		Message string          `json:"deny_message"`
	}
	if err := object(path, raw, &in); err != nil {
		return nil, err
	}
	if in.Result != "allow" && in.Result != "deny" {
		return nil, bad("%s.result: must be allow or deny, not %q", path, clip(in.Result))
	}
	return &outboard.InputConfirmation{Call: in.Call, Allow: in.Result == "allow", Message: in.Message}, nil
}
