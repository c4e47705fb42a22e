package egress

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/outboard-dev/outboard"
)

// SelftestHost is a name that the gateway answers itself, so that `outboard kill --drill` has requests and an
// open stream to cut on any machine, with nobody outside. It goes through every check like another host, so only
// an environment that allows it can ask for it, and what it can get is ticks.
const SelftestHost = "drill.outboard.invalid"

const (
	// SelftestStream is the path of a stream that has no end of its own.
	SelftestStream = "/stream"
	// ActionSelftestEnd is on record when such a stream has ended.
	ActionSelftestEnd = "drill.stream_end"
	// selftestTick is how often the stream says something.
	selftestTick = 20 * time.Millisecond
	// selftestTime ends a stream that nobody has cut.
	selftestTime = 2 * time.Minute
)

// selftest answers a permitted request for SelftestHost.
func (p *port) selftest(w http.ResponseWriter, r *http.Request, req Request) {
	if req.Path != SelftestStream {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), selftestTime)
	defer cancel()
	w.Header().Set("Content-Type", "text/event-stream")
	tick := time.NewTicker(selftestTick)
	defer tick.Stop()
	var err error
	for err == nil && ctx.Err() == nil {
		if _, err = io.WriteString(w, "data: tick\n\n"); err == nil {
			err = http.NewResponseController(w).Flush()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	why := "the other side has gone"
	if cause := context.Cause(ctx); cause != nil {
		why = cause.Error()
	}
	if err := p.record(context.WithoutCancel(ctx), ActionSelftestEnd, req, outboard.Allowed, "drill",
		detail{Reason: why}); err != nil {
		p.g.log.Error("the end of a drill's stream was not recorded", "session", p.subject.Session, "err", err)
	}
}
