package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// HandsConfig says what the benches that need sandboxes measure.
type HandsConfig struct {
	Dir   string // on the disk to measure
	Guest string // the outboard-guest program
	N     int    // calls or turns
}

// Exec measures one call in a live sandbox, from Start to its result, against F, the spawn and wait of a static
// program on the host: true as the bash tool runs it (a built-in of the session's shell), true as a process
// without a shell, and /bin/true as a child of that shell, so that the built-in does not flatter the figure.
func Exec(ctx context.Context, cfg HandsConfig) ([]Row, error) {
	samples, floor, kind, err := execSamples(ctx, cfg)
	if err != nil {
		return nil, err
	}
	var rows []Row
	for _, p := range execProbes {
		row := Latency("exec/"+p.name, samples[p.name], quantile(floor, 0.5)).AtMost(3)
		row.Note = "floor is F, the spawn of " + kind
		rows = append(rows, row)
	}
	return rows, nil
}

// execProbes are the calls that are measured.
var execProbes = []struct {
	name, op string
	input    any
}{
	{"bash-true", "bash", map[string]string{"command": "true"}},
	{"process-true", "exec", map[string][]string{"argv": {"/bin/true"}}},
	{"bash-bin-true", "bash", map[string]string{"command": "/bin/true"}},
}

func execSamples(ctx context.Context,
	cfg HandsConfig) (_ map[string][]time.Duration, floor []time.Duration, kind string, err error) {
	rig, err := newExecRig(ctx, cfg)
	if err != nil {
		return nil, nil, "", err
	}
	defer rig.close(context.WithoutCancel(ctx))
	floor, kind, err = SpawnFloor(cfg.Dir, cfg.N)
	if err != nil {
		return nil, nil, "", err
	}
	out := map[string][]time.Duration{}
	for i, p := range execProbes {
		if _, err := rig.sample(ctx, i, 1); err != nil {
			return nil, nil, "", err
		}
		if out[p.name], err = rig.sample(ctx, i, cfg.N); err != nil {
			return nil, nil, "", err
		}
	}
	more, _, err := SpawnFloor(cfg.Dir, cfg.N)
	return out, slices.Concat(floor, more), kind, err
}

// execRig is a live sandbox whose shell has started.
type execRig struct {
	provider *native.Provider
	box      sandbox.Sandbox
	calls    int
}

func newExecRig(ctx context.Context, cfg HandsConfig) (*execRig, error) {
	p, err := native.New(native.Config{Dir: filepath.Join(cfg.Dir, "exec"), Guest: cfg.Guest})
	if err != nil {
		return nil, err
	}
	id := outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox)
	box, err := p.Create(ctx, sandbox.Spec{ID: id, Generation: string(id)})
	if err != nil {
		p.Close()
		return nil, err
	}
	r := &execRig{provider: p, box: box}
	if _, err := r.sample(ctx, 0, 1); err != nil {
		r.close(context.WithoutCancel(ctx))
		return nil, err
	}
	return r, nil
}

func (r *execRig) close(ctx context.Context) {
	r.box.Close()
	r.provider.Destroy(ctx, r.box.ID())
	r.provider.Close()
}

// sample makes n calls of a probe.
func (r *execRig) sample(ctx context.Context, probe, n int) ([]time.Duration, error) {
	p := execProbes[probe]
	input, err := json.Marshal(p.input)
	if err != nil {
		return nil, err
	}
	out := make([]time.Duration, 0, n)
	for range n {
		r.calls++
		d, err := execOnce(ctx, r.box, p.op, input, fmt.Sprintf("%s/%d", p.name, r.calls))
		if err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return out, nil
}

func execOnce(ctx context.Context, box sandbox.Sandbox, op string, input []byte, key string) (time.Duration, error) {
	begin := time.Now()
	res, err := box.Start(ctx, guest.Start{Key: key, Epoch: 1, Generation: box.Generation(), Digest: key, Op: op,
		Input: input, Shell: "bench", TimeoutMs: 10_000, OutputLimit: 1 << 10})
	if err == nil && res.State != guest.StateDone {
		res, err = box.Wait(ctx, key, 1)
	}
	took := time.Since(begin)
	switch {
	case err != nil:
		return 0, err
	case res.ExitCode == nil || *res.ExitCode != 0:
		return 0, fmt.Errorf("%s ended as %+v", key, res)
	}
	return took, box.Ack(ctx, key, 1)
}

// turnSpells is how often the bench of turns goes back and forth between turns and what their floor is made of:
// a disk or a machine that others use as well may be twice as fast in one second as in the next.
const turnSpells = 20

// Turn measures a turn with one bash call on a live sandbox, SQLite. Its floor is what the protocol cannot do
// without: the turn's durable commits, each an fdatasync, and the exec itself, both measured between the turns.
func Turn(ctx context.Context, cfg HandsConfig) ([]Row, error) {
	rig, err := newExecRig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer rig.close(context.WithoutCancel(ctx))
	st, err := newStack(ctx, filepath.Join(cfg.Dir, "turn"), cfg.Guest, 4)
	if err != nil {
		return nil, err
	}
	defer st.close(context.WithoutCancel(ctx))
	h, err := st.session(ctx)
	if err != nil {
		return nil, err
	}
	const steps = "- bash: 'true'\n- say: done\n"
	if _, err := timed(1, func() error { return st.turn(ctx, h, steps) }); err != nil { // makes the sandbox
		return nil, err
	}
	var syncs, execs, turns []time.Duration
	before := st.Store.Commits()
	for range turnSpells {
		each := max(cfg.N/turnSpells, 1)
		sync, err := SyncFloor(cfg.Dir, each)
		if err != nil {
			return nil, err
		}
		exec, err := rig.sample(ctx, 0, each)
		if err != nil {
			return nil, err
		}
		turn, err := timed(each, func() error { return st.turn(ctx, h, steps) })
		if err != nil {
			return nil, err
		}
		syncs, execs, turns = append(syncs, sync...), append(execs, exec...), append(turns, turn...)
	}
	sync, commits := quantile(syncs, 0.5), float64(st.Store.Commits()-before)/float64(len(turns))
	row := Latency("turn/one-bash-call", turns, time.Duration(commits*float64(sync))+quantile(execs, 0.5)).AtMost(2)
	row.Note = fmt.Sprintf("floor = %.1f commits x %s fdatasync + exec p50", commits, sync.Round(time.Microsecond))
	return []Row{row}, nil
}

// timed runs f n times and returns how long each took.
func timed(n int, f func() error) ([]time.Duration, error) {
	out := make([]time.Duration, 0, n)
	for range n {
		begin := time.Now()
		if err := f(); err != nil {
			return nil, err
		}
		out = append(out, time.Since(begin))
	}
	return out, nil
}

// SessionsConfig sizes the density bench.
type SessionsConfig struct {
	HandsConfig
	Idle, Running, Turns int
}

// Sessions measures what waiting sessions cost (memory of this process per idle session) and how many turns a
// crowd completes.
func Sessions(ctx context.Context, cfg SessionsConfig) ([]Row, error) {
	idle, err := idleRow(ctx, cfg)
	if err != nil {
		return nil, err
	}
	crowd, err := crowdRow(ctx, cfg)
	return []Row{idle, crowd}, err
}

// idleRow lets sessions run one turn each and come to rest, and then compares the process's live memory with before.
func idleRow(ctx context.Context, cfg SessionsConfig) (Row, error) {
	st, err := newStack(ctx, filepath.Join(cfg.Dir, "idle"), cfg.Guest, 64)
	if err != nil {
		return Row{}, err
	}
	defer st.close(context.WithoutCancel(ctx))
	warm := func(n int) error {
		_, err := inParallel(n, 64, func() error {
			h, err := st.session(ctx)
			if err != nil {
				return err
			}
			return st.turn(ctx, h, "- say: hi\n")
		})
		return err
	}
	if err := warm(200); err != nil { // caches, pools and connections reach their size
		return Row{}, err
	}
	before, routines := liveMemory(), runtime.NumGoroutine()
	if err := warm(cfg.Idle); err != nil {
		return Row{}, err
	}
	per := float64(max(liveMemory()-before, 0)) / float64(cfg.Idle)
	row := Row{Name: "sessions/idle-memory", Unit: "bytes", N: cfg.Idle, P50: round(per), P99: round(per), Floor: 1024,
		Ratio: per / 1024,
		Note: fmt.Sprintf("heap and stacks per session; floor is 1 KiB; goroutines %+d",
			runtime.NumGoroutine()-routines)}
	return row.AtMost(1), nil
}

// liveMemory is what the process holds after collection: heap objects and stacks.
func liveMemory() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// crowdRow runs sessions side by side, each for a number of turns with one bash call.
func crowdRow(ctx context.Context, cfg SessionsConfig) (Row, error) {
	st, err := newStack(ctx, filepath.Join(cfg.Dir, "crowd"), cfg.Guest, cfg.Running)
	if err != nil {
		return Row{}, err
	}
	var (
		mu      sync.Mutex
		samples []time.Duration
	)
	defer st.close(context.WithoutCancel(ctx))
	took, err := inParallel(cfg.Running, cfg.Running, func() error {
		h, err := st.session(ctx)
		if err != nil {
			return err
		}
		for range cfg.Turns {
			begin := time.Now()
			if err := st.turn(ctx, h, "- bash: 'true'\n- say: done\n"); err != nil {
				return err
			}
			mu.Lock()
			samples = append(samples, time.Since(begin))
			mu.Unlock()
		}
		return nil
	})
	if err != nil {
		return Row{}, fmt.Errorf("running %d sessions: %w", cfg.Running, err)
	}
	row := Rate("sessions/running", float64(len(samples))/took.Seconds(), 0, samples)
	row.Unit = "turns/s"
	row.Note = fmt.Sprintf("%d sessions x %d turns, sandboxes made on the way, no error; p99 is a turn's latency in us",
		cfg.Running, cfg.Turns)
	return row, nil
}

// inParallel runs f n times, at most width at once, and gives the time it took. The first error ends it.
func inParallel(n, width int, f func() error) (time.Duration, error) {
	begin := time.Now()
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		failure error
		tickets = make(chan struct{}, width)
	)
	for range n {
		tickets <- struct{}{}
		mu.Lock()
		stop := failure != nil
		mu.Unlock()
		if stop {
			break
		}
		wg.Go(func() {
			defer func() { <-tickets }()
			if err := f(); err != nil {
				mu.Lock()
				failure = err
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return time.Since(begin), failure
}
