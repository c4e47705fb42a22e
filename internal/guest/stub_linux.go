package guest

import (
	"context"
)

type workspace struct{ cfg *ServerConfig }

func (s *server) transfer(ctx context.Context, h requestHead, body []byte, st *stream) (any, []byte, error) {
	return nil, nil, &Error{Code: Invalid, Message: "unknown operation " + h.Op}
}

func (s *server) fileTool(ctx context.Context, c Start, k *sink) outcome {
	return refused(k, "unknown operation %q", c.Op)
}
