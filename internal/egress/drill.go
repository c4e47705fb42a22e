package egress

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/outboard-dev/outboard"
)

// DrillHost is a name that the gateway answers itself, so that `outboard kill --drill` has requests and an open stream to cut on any
// machine, with nobody outside. It goes through every check like another host, so only an environment that allows it can ask for it,
// and what it can get is ticks.
const DrillHost = "drill.outboard.invalid"

const (
	// DrillStream is the path of a stream that has no end of its own.
	DrillStream = "/stream"
	// ActionDrillEnd is on record when such a stream has ended.
	ActionDrillEnd = "drill.stream_end"
	// drillTick is how often the stream says something.
	drillTick = 20 * time.Millisecond
	// drillTime ends a stream that nobody has cut.
	drillTime = 2 * time.Minute
)

// drill answers a permitted request for DrillHost.
func (p *port) drill(w http.ResponseWriter, r *http.Request, req Request) {
	if req.Path != DrillStream {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), drillTime)
	defer cancel()
	w.Header().Set("Content-Type", "text/event-stream")
	tick := time.NewTicker(drillTick)
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
	if err := p.record(context.WithoutCancel(ctx), ActionDrillEnd, req, outboard.Allowed, "drill", detail{Reason: why}); err != nil {
		p.g.log.Error("the end of a drill's stream was not recorded", "session", p.subject.Session, "err", err)
	}
}
