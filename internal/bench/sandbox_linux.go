package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// SandboxConfig says what the sandbox bench measures.
type SandboxConfig struct {
	HandsConfig
	Crowd int      // sandboxes that live at once
	Parts []string // what to measure of create, warm, live, crowd, layers, rest, technologies, peers; nil = all
}

// sandboxRows are the parts of the sandbox bench, in order. A part gets a machine that is otherwise at rest and
// leaves it so. To add a figure, add a function here; samples go beside F with hands.latency, which measures the
// floor anew around each part.
var sandboxRows = []struct {
	name string
	run  func(context.Context, *hands) ([]Row, error)
	warm int // sandboxes that are started ahead
}{
	{"create", createRows, 0},
	{"warm", warmRows, 2},
	{"live", liveRows, 0},
	{"crowd", crowdRows, 0},
	{"layers", layerRows, 1},
	{"rest", restRows, 0},
	{"technologies", technologyRows, 0},
	{"peers", peerRows, 0},
}

// Sandbox measures making, using, stopping and destroying native sandboxes, those of other technologies that are
// here, and other programs that make sandboxes. Its floor is F, the spawn and wait of a static program.
func Sandbox(ctx context.Context, cfg SandboxConfig) ([]Row, error) {
	var names []string
	for _, part := range sandboxRows {
		names = append(names, part.name)
	}
	for _, asked := range cfg.Parts {
		if !slices.Contains(names, asked) {
			return nil, outboard.Errorf(outboard.Invalid, "the bench of sandboxes has no part %q", asked).
				WithHint("%s", strings.Join(names, ", "))
		}
	}
	var rows []Row
	for _, part := range sandboxRows {
		if len(cfg.Parts) > 0 && !slices.Contains(cfg.Parts, part.name) {
			continue
		}
		h := &hands{SandboxConfig: cfg, warm: part.warm}
		h.Dir = filepath.Join(cfg.Dir, part.name)
		got, err := h.part(ctx, part.run)
		if err != nil {
			return rows, fmt.Errorf("measuring %s: %w", part.name, err)
		}
		rows = append(rows, got...)
	}
	return beside(rows), nil
}

// hands is what one part of the sandbox bench works with.
type hands struct {
	SandboxConfig
	native *native.Provider
	kind   string // what F spawned
	warm   int
}

// part measures F, runs one part and measures F again; the rows' ratios are to the median of both.
func (h *hands) part(ctx context.Context, run func(context.Context, *hands) ([]Row, error)) ([]Row, error) {
	p, err := native.New(native.Config{Dir: h.Dir, Guest: h.Guest, Ahead: 4, Warm: h.warm})
	if err != nil {
		return nil, err
	}
	h.native = p
	before, kind, err := SpawnFloor(h.Dir, 300)
	if err != nil {
		return nil, err
	}
	h.kind = kind
	rows, err := run(ctx, h)
	if err = errors.Join(err, p.Close()); err != nil {
		return nil, err
	}
	after, _, err := SpawnFloor(h.Dir, 300)
	if err != nil {
		return nil, err
	}
	return h.against(rows, quantile(slices.Concat(before, after), 0.5)), nil
}

// against sets the floor of the rows that are measured in microseconds and have none, and judges those whose bar
// waits for it.
func (h *hands) against(rows []Row, floor time.Duration) []Row {
	for i, r := range rows {
		if r.Unit != "us" || r.Floor != 0 {
			continue
		}
		r.Floor, r.Ratio = micros(floor), ratio(r.P50, micros(floor))
		if r.max > 0 {
			r = r.AtMost(r.max)
			r.OK = r.OK && !r.broken
		}
		if i == 0 && r.Note == "" {
			r.Note = "floor is F, the spawn of " + h.kind
		}
		rows[i] = r
	}
	return rows
}

// latency is a row whose floor comes later; max is its bar in F, 0 for none.
func latency(name string, samples []time.Duration, max float64) Row {
	r := Latency("sandbox/"+name, samples, 0)
	r.max = max
	return r
}

// make makes a sandbox and returns how long that took.
func (h *hands) make(ctx context.Context) (sandbox.Sandbox, time.Duration, error) {
	id := outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox)
	begin := time.Now()
	box, err := h.native.Create(ctx, sandbox.Spec{ID: id, Generation: string(id)})
	return box, time.Since(begin), err
}

var processTrue, _ = json.Marshal(map[string][]string{"argv": {"/bin/true"}})

// createRows makes sandboxes one after the other, each with its first command, and destroys them.
func createRows(ctx context.Context, h *hands) ([]Row, error) {
	create, first, destroy, emptied, err := h.serially(ctx, "exec", processTrue)
	if err != nil {
		return nil, err
	}
	cold := latency("create", create, 10)
	cold.Note = "floor is F, the spawn of " + h.kind + "; one at a time, what is made ahead is there"
	gone := latency("destroy-all", emptied, 0)
	gone.Note = "until nothing of it is left"
	return []Row{cold, latency("create-first", first, 12), latency("destroy", destroy, 0), gone}, nil
}

// warmRows does the same where a started sandbox waits, with a process and with the persistent shell.
func warmRows(ctx context.Context, h *hands) ([]Row, error) {
	handed, first, _, _, err := h.serially(ctx, "exec", processTrue)
	if err != nil {
		return nil, err
	}
	input, _ := json.Marshal(map[string]string{"command": "true"})
	_, shell, _, _, err := h.serially(ctx, "bash", input)
	if err != nil {
		return nil, err
	}
	return []Row{latency("warm", handed, 0), latency("warm-first", first, 4),
		latency("warm-first-shell", shell, 4)}, nil
}

// serially makes, uses and destroys sandboxes one at a time, each when what is made ahead is there.
func (h *hands) serially(ctx context.Context, op string,
	input []byte) (create, first, destroy, emptied []time.Duration, err error) {
	for i := range h.N/5 + 5 {
		h.native.PoolFilled()
		box, made, err := h.make(ctx)
		if err != nil {
			return nil, nil, nil, nil, err
		}
		ran, err := execOnce(ctx, box, op, input, string(box.ID())+"/1")
		if err != nil {
			return nil, nil, nil, nil, errors.Join(err, h.native.Destroy(ctx, box.ID()))
		}
		begin := time.Now()
		if err := errors.Join(box.Close(), h.native.Destroy(ctx, box.ID())); err != nil {
			return nil, nil, nil, nil, err
		}
		killed := time.Since(begin)
		h.native.TrashEmpty()
		if i < 5 { // layers, pools and the program's copy come to be
			continue
		}
		create, first, destroy, emptied = append(create, made), append(first, made+ran), append(destroy,
			killed), append(emptied, time.Since(begin))
	}
	return create, first, destroy, emptied, nil
}

// liveRows uses one sandbox.
func liveRows(ctx context.Context, h *hands) ([]Row, error) {
	box, _, err := h.make(ctx)
	if err != nil {
		return nil, err
	}
	defer h.native.Destroy(context.WithoutCancel(ctx), box.ID())
	defer box.Close()
	var run, freeze, thaw []time.Duration
	input, _ := json.Marshal(map[string]string{"command": "true"})
	for i := range h.N + 1 {
		d, err := execOnce(ctx, box, "bash", input, fmt.Sprint("run/", i))
		if err != nil {
			return nil, err
		}
		if i > 0 { // the first starts the shell
			run = append(run, d)
		}
	}
	for range h.N {
		begin := time.Now()
		if err := box.Freeze(ctx); err != nil {
			return nil, err
		}
		frozen := time.Now()
		if err := box.Thaw(ctx); err != nil {
			return nil, err
		}
		freeze, thaw = append(freeze, frozen.Sub(begin)), append(thaw, time.Since(frozen))
	}
	return []Row{latency("exec-true", run, 2.5), latency("freeze", freeze, 1), latency("thaw", thaw, 1)}, nil
}
