package native

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
)

// Sandboxes without a disk limit share the server's disk with it. The last room of that is the server's: with
// less than the reserve no sandbox is made, and in those there are a program that goes on writing is ended. It
// is a guard against accidents, also those of fallocate, of which one call takes less than maxAllocate. It is none
// against who means to fill the disk, which is looked at some times a second: many such calls take all of it before
// the next look. A limit on the disk holds against anybody.

const (
	// defaultReserve and reserveShare are the reserve where the configuration names none: so many bytes, or this
	// part of a small disk.
	defaultReserve = 1 << 30
	reserveShare   = 50
	// reserveEvery is how often the disk is looked at: a program writes some hundred MB in that time, of the
	// reserve's GiB. With less room than reserveNear reserves it is reserveSoon, and so is the time to the second
	// look at the programs, the first that can end one: a smaller reserve is gone in less.
	reserveEvery = 200 * time.Millisecond
	reserveSoon  = reserveEvery / 10
	reserveNear  = 8
	// reserveGrain is what a process may write between two looks: what small files, logs and removals come to.
	reserveGrain = 1 << 20
	// reserveStrikes is in how many looks programs of a sandbox may be ended for it. With one more all are:
	// their work is to start others.
	reserveStrikes = 5
)

// reserve is what sandboxes leave of the disk, and who looks after it.
type reserve struct {
	bytes int64 // Config.Reserve
	stop  context.CancelFunc
	done  chan struct{}
}

// diskSpace returns how much of the disk is free, and what sandboxes leave of it. A disk that cannot be asked has room.
func (p *Provider) diskSpace() (free, least int64) {
	var st unix.Statfs_t
	if p.reserve.bytes == 0 || unix.Statfs(p.dir, &st) != nil {
		return 0, 0
	}
	if least = p.reserve.bytes; least < 0 {
		least = min(defaultReserve, int64(st.Blocks)*st.Bsize/reserveShare)
	}
	return int64(st.Bavail) * st.Bsize, least
}

// leavesReserve returns an error where the disk has only room that sandboxes leave.
func (p *Provider) leavesReserve() error {
	free, least := p.diskSpace()
	if free >= least {
		return nil
	}
	text := "the server's disk is full but for what sandboxes leave"
	return outboard.Errorf(outboard.Unavailable, "%s: %d MiB are free in %s, and sandbox.disk_reserve_bytes is %d MiB",
		text, free>>20, p.dir, least>>20).
		WithCode(outboard.CodeDiskFull).WithPublic("%s", text).WithHint(outboard.HintFullDisk)
}

// keepReserve begins to look after the reserve.
func (p *Provider) keepReserve() {
	if p.reserve.bytes == 0 {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	p.reserve.stop, p.reserve.done = stop, make(chan struct{})
	go func() {
		defer close(p.reserve.done)
		next := time.NewTimer(0)
		defer next.Stop()
		var w *writers // nil while there is room
		for {
			select {
			case <-ctx.Done():
				return
			case <-next.C:
			}
			wait := reserveEvery
			free, least := p.diskSpace()
			if free/reserveNear < least {
				wait = reserveSoon
			}
			if free >= least {
				w = nil
			} else {
				if w != nil {
					wait = reserveEvery // reserveGrain is by this
				} else {
					p.log.Warn("the disk has only room that sandboxes leave: programs in them that write are ended "+
						"until there is more", "dir", p.dir,
						"free", free, "reserve", least, "fix", outboard.HintFullDisk)
					w = &writers{p: p, strikes: map[outboard.SandboxID]int{}}
				}
				w.look()
			}
			next.Reset(wait)
		}
	}()
}

// close ends the look-out.
func (r *reserve) close() {
	if r.stop != nil {
		r.stop()
		<-r.done
	}
}

// writers is what is known of the programs of sandboxes while the disk has no room for them.
type writers struct {
	p       *Provider
	written map[int]int64 // by process, at the last look; nil before the first
	warned  map[int]bool  // those that were sent SIGXFSZ then
	strikes map[outboard.SandboxID]int
}

// look ends the programs that have written since the last one: by the signal for too large a file, which a shell
// explains, and by SIGKILL where that was of no use. Guests are spared: what they write is bounded, and they are
// needed to make room.
func (w *writers) look() {
	ids, err := w.p.ids()
	if err != nil {
		w.p.log.Warn("sandboxes not listed", "err", err)
		return
	}
	before, warned := w.written, w.warned
	w.written, w.warned = map[int]int64{}, map[int]bool{}
	for _, id := range ids {
		b, err := w.p.placeOf(id)
		if err != nil {
			continue
		}
		s, err := b.load()
		if err != nil || len(s.Cgroups) == 0 {
			continue // it is being made or removed
		}
		all, struck := w.programs(s), false
		for _, pid := range all {
			n := writtenBy(pid)
			w.written[pid] = n
			if before == nil || n-before[pid] < reserveGrain {
				continue
			}
			struck, w.warned[pid] = true, true
			sig := unix.SIGXFSZ
			if warned[pid] {
				sig = unix.SIGKILL
			}
			signalMember(s.ID, pid, sig)
		}
		if struck {
			w.strike(s.ID, all)
		}
	}
}

// strike notes that programs of a sandbox were ended, and ends all when that was not enough.
func (w *writers) strike(id outboard.SandboxID, all []int) {
	if w.strikes[id]++; w.strikes[id] <= reserveStrikes {
		w.p.log.Warn("a program was ended because it writes to a disk that has only room that sandboxes leave",
			"sandbox", id)
		return
	}
	w.p.log.Warn("all programs of a sandbox were ended because they go on writing to a disk that has only room that "+
		"sandboxes leave", "sandbox", id)
	for _, pid := range all {
		signalMember(id, pid, unix.SIGKILL)
	}
}

// programs lists the processes of a sandbox but for its guest.
func (w *writers) programs(s *state) (pids []int) {
	data, err := readRaw(filepath.Join(s.Cgroups[0], "cgroup.procs"))
	if err != nil {
		return nil
	}
	for line := range strings.FieldsSeq(string(data)) {
		if pid, err := strconv.Atoi(line); err == nil && pid > 1 && pid != s.Pid {
			pids = append(pids, pid)
		}
	}
	return pids
}

// writtenBy returns how many bytes for a disk the threads of a process have made, through mappings too. What the
// process as a whole is said to have written has in it what its ended children have.
func writtenBy(pid int) (n int64) {
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, t := range tasks {
		data, _ := readRaw(fmt.Sprintf("/proc/%d/task/%s/io", pid, t.Name()))
		for line := range strings.Lines(string(data)) {
			if v, ok := strings.CutPrefix(line, "write_bytes: "); ok {
				m, _ := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
				n += m
			}
		}
	}
	return n
}

// signalMember sends a signal to a process if it is one of a sandbox's: its id may be somebody else's by now.
func signalMember(id outboard.SandboxID, pid int, sig unix.Signal) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	group, err := readRaw(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err == nil && strings.Contains(string(group), "/"+string(id)+"\n") {
		_ = unix.PidfdSendSignal(fd, sig, nil, 0) // it has ended, then
	}
}
