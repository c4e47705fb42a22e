package runner

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/tool"
)

// picture gives the result of a read the picture or document that it found, which is more than a result of the
// guest holds: it is read by the call's path, and taken only where it is what the call has read. A picture that
// no model takes is an error that says so. err is ours, or the sandbox's.
func (t *turn) picture(ctx context.Context, lease *fleet.Lease, j *job,
	res guest.Result) (*outboard.CallFinished, error) {
	media, size, sum, ok := guest.ParseMediaLine(res.Output)
	if j.def.Name != "read" || res.State != guest.StateDone || res.Cause != "exited" || !ok {
		return nil, nil
	}
	refuse := func(format string, args ...any) (*outboard.CallFinished, error) {
		return new(tool.Failed(j.call.ID, outboard.OutcomeError, "read: "+j.sent.Opens+": "+fmt.Sprintf(format,
			args...))), nil
	}
	var b bytes.Buffer
	err := lease.ReadFile(ctx, fleet.FileRef{Path: guest.Name(j.sent.Opens)}, 0, guest.MaxMedia+1,
		&limited{w: &b, left: guest.MaxMedia})
	if e, is := errors.AsType[*guest.Error](err); is {
		return refuse("%s", e.Message)
	}
	if err != nil {
		return nil, err
	}
	if got := sha256.Sum256(b.Bytes()); int64(b.Len()) != size || hex.EncodeToString(got[:]) != sum {
		return refuse("changed while it was read; read it again")
	}
	kind, about := "document", fmt.Sprintf("(%s, %d bytes)", media, size)
	if strings.HasPrefix(media, "image/") {
		w, h, err := tool.Measure(media, b.Bytes())
		if err != nil {
			return refuse("%v", err)
		}
		kind, about = "image", fmt.Sprintf("(%s, %d x %d pixels, %d bytes)", media, w, h, size)
	}
	ref, err := t.Spill(ctx, b.Bytes())
	if err != nil {
		return nil, fmt.Errorf("storing what call %s read: %w", j.call.ID, err)
	}
	res.Output = []byte(about)
	fin := tool.Finish(j.call.ID, res, j.limits)
	fin.Content = append(fin.Content, outboard.Content{Type: kind,
		Source: &outboard.Source{Type: "blob", MediaType: media, Blob: &ref, Encoding: "base64"}})
	return &fin, nil
}

// limited passes on so many bytes, and fails beyond.
type limited struct {
	w    io.Writer
	left int
}

// Write passes p on.
func (l *limited) Write(p []byte) (int, error) {
	if l.left -= len(p); l.left < 0 {
		return 0, errors.New("the file grew over the limit")
	}
	return l.w.Write(p)
}
