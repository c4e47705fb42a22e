package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// crowdWidth is how many sandboxes are made, used or destroyed at a time.
const crowdWidth = 4

// crowdRows makes many sandboxes that live at once, runs a command in each, and destroys them all. Nothing may be left.
func crowdRows(ctx context.Context, h *hands) ([]Row, error) {
	before, err := h.remains()
	if err != nil {
		return nil, err
	}
	if err := h.rehearse(ctx); err != nil {
		return nil, err
	}
	var (
		mu    sync.Mutex
		boxes []sandbox.Sandbox
	)
	defer func() {
		for _, b := range boxes {
			h.native.Destroy(context.WithoutCancel(ctx), b.ID())
		}
	}()
	create, err := inParallel(h.Crowd, crowdWidth, func() error {
		b, _, err := h.make(ctx)
		if err == nil {
			mu.Lock()
			boxes = append(boxes, b)
			mu.Unlock()
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("making %d sandboxes: %w", h.Crowd, err)
	}
	run, err := h.each(boxes, func(b sandbox.Sandbox) error {
		_, err := execOnce(ctx, b, "exec", processTrue, string(b.ID())+"/1")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("using them: %w", err)
	}
	idle, err := groupMemory(ctx, "idle-memory", boxes, "that has run a program")
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	if _, err := h.each(boxes,
		func(b sandbox.Sandbox) error { return errors.Join(b.Close(), h.native.Destroy(ctx, b.ID())) }); err != nil {
		return nil, fmt.Errorf("destroying them: %w", err)
	}
	h.native.TrashEmpty()
	destroy := time.Since(begin)
	boxes = nil
	if err := h.native.Close(); err != nil {
		return nil, err
	}
	left, err := h.remains()
	if err != nil {
		return nil, err
	}
	n := time.Duration(h.Crowd)
	total := latency("crowd", []time.Duration{(create + run + destroy) / n}, 15)
	total.N, total.Note = h.Crowd, fmt.Sprintf("each: %s to make, %s to use, %s to destroy, %d at a time; left: %s",
		(create/n).Round(time.Microsecond),
		(run/n).Round(time.Microsecond), (destroy/n).Round(time.Microsecond), crowdWidth, left.since(before))
	if left != before {
		total.broken = true
	}
	return []Row{total, idle}, nil
}

// rehearse makes a sandbox and destroys it: what a provider makes once, such as the layer of the host's files,
// is no part of what one more costs.
func (h *hands) rehearse(ctx context.Context) error {
	b, _, err := h.make(ctx)
	if err == nil {
		err = errors.Join(b.Close(), h.native.Destroy(ctx, b.ID()))
	}
	h.native.TrashEmpty()
	h.native.PoolFilled()
	return err
}

// each runs f for every box, several at a time.
func (h *hands) each(boxes []sandbox.Sandbox, f func(sandbox.Sandbox) error) (time.Duration, error) {
	next := make(chan sandbox.Sandbox, len(boxes))
	for _, b := range boxes {
		next <- b
	}
	return inParallel(len(boxes), crowdWidth, func() error { return f(<-next) })
}

// remains is what sandboxes can leave on a host.
type remains struct{ mounts, cgroups, files, processes, dirs int }

func (h *hands) remains() (r remains, err error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return r, err
	}
	r.mounts = strings.Count(string(mounts), h.Dir)
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return r, err
	}
	r.files = max(0, len(fds)-maxOwnFiles)
	reserved, err := native.Reserved(h.Dir)
	if err != nil {
		return r, err
	}
	for _, group := range reserved {
		groups, _ := filepath.Glob("/sys/fs/cgroup/*/outboard/" + group)
		r.cgroups += 1 + len(groups)
	}
	dirs, _ := filepath.Glob(filepath.Join(h.Dir, outboard.PrefixSandbox+"*"))
	trash, _ := filepath.Glob(filepath.Join(h.Dir, "graves", "*"))
	r.dirs = len(dirs) + len(trash)
	children, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", os.Getpid()))
	if err == nil {
		r.processes = len(strings.Fields(string(children)))
	}
	return r, nil
}

// maxOwnFiles is room for what this process has open itself.
const maxOwnFiles = 32

func (r remains) since(before remains) string {
	if r == before {
		return "nothing"
	}
	return fmt.Sprintf("%+v, before %+v", r, before)
}

// groupMemory is what the control group of each sandbox is charged with, but for cached files that the kernel
// takes back when it wants to: the memory of its processes, and of the kernel for them (stacks, page tables,
// sockets, names of files). The difference in what the whole host uses would hold a little more, mounts and
// namespaces made before there was a process, but moves by megabytes for each sandbox with whatever else runs
// there. The kernel charges in batches for each processor, so single groups are exact to some hundred KiB, and
// their mean is what counts.
func groupMemory(ctx context.Context, name string, boxes []sandbox.Sandbox, what string) (Row, error) {
	row := Row{Name: "sandbox/" + name, Unit: "KiB", N: len(boxes), Floor: 1536,
		Note: "what a sandbox's control group is charged with, kernel memory included, cached files and what was " +
			"made before its first process not; mean, of one " + what}
	var each []float64
	var sum float64
	for _, b := range boxes {
		m, ok := b.(sandbox.Measured)
		if !ok {
			return row, nil
		}
		u, err := m.Usage(ctx)
		if err != nil {
			return row, err
		}
		if u.Memory == 0 {
			row.Note = "this host does not count the memory of control groups"
			return row, nil
		}
		each = append(each, float64(u.Memory-u.Cache)/1024)
		sum += each[len(each)-1]
	}
	slices.Sort(each)
	row.P50, row.P99 = round(sum/float64(len(each))), round(each[len(each)*99/100])
	row.Ratio = row.P50 / row.Floor
	return row.AtMost(1), nil
}

// hostMemory is what the kernel and the processes of this host use, in bytes, without the page cache.
func hostMemory() (int64, error) {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	var sum int64
	for line := range strings.Lines(string(data)) {
		name, rest, _ := strings.Cut(line, ":")
		switch name {
		case "Slab", "PageTables", "KernelStack", "AnonPages", "Shmem", "Percpu":
			var n int64
			if _, err := fmt.Sscan(rest, &n); err != nil {
				return 0, fmt.Errorf("reading %s: %w", name, err)
			}
			sum += n << 10
		}
	}
	return sum, nil
}
