//go:build linux

package native_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// listing is everything that can be seen of a workspace: kinds, modes, sizes, times, which names are one file
// and how many, content.
const listing = `cd /workspace; find . \( -type d -printf '%p d %m %T@\n' \) -o -printf '%p %y %m %s %l %T@\n' | sort; ` +
	`find . -type f -printf '%n names: %p\n' | sort; find . -type f -printf '%i %p\n' | sort -k1,1 -k2 | awk '$1 != last { last = $1; first = $2 } { print $2, "is", first }' | sort; ` +
	`find . -type f | sort | tr '\n' '\0' | xargs -0 -r sha256sum; cd /`

// height returns how many layers the sandbox's writable one lies on.
func height(t *testing.T, dir string, id outboard.SandboxID) int {
	t.Helper()
	stacks, err := filepath.Glob(filepath.Join(dir, string(id), "*", "stack.json"))
	if err != nil {
		t.Fatal(err)
	}
	newest := -1
	for _, file := range stacks {
		if at, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil { // neither made ahead nor below
			newest = max(newest, at)
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, string(id), strconv.Itoa(newest), "stack.json"))
	var s struct{ Below []string }
	if err = errors.Join(err, json.Unmarshal(data, &s)); err != nil {
		t.Fatal(err)
	}
	return len(s.Below)
}

// nothingLeft destroys sandboxes, forgets all checkpoints, and fails if a layer is left.
func nothingLeft(t *testing.T, p *native.Provider, dir string, boxes ...*testSandbox) {
	t.Helper()
	for _, b := range boxes {
		if err := errors.Join(b.Close(), p.Destroy(t.Context(), b.ID())); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := p.Kept(t.Context())
	if err != nil || len(kept) == 0 {
		t.Fatalf("%d checkpoints, %v", len(kept), err) // the control
	}
	for _, id := range kept {
		if err := p.Forget(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	p.TrashEmpty()
	if err := p.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(filepath.Join(dir, "layers"))
	if err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// Broken if a session of many checkpoints comes to a limit, if one of them cannot be gone back to or forked from
// any more, if another tree is found there, or if layers stay when nobody needs them.
func TestManyCheckpoints(t *testing.T) {
	p, dir := newProvider(t)
	if !p.Capabilities().Layers {
		t.Skip("no layers on this host or as this user")
	}
	const steps = 300
	m := start(t, p, "")
	type state struct {
		id   outboard.CheckpointID
		tree string
	}
	states := map[int]state{3: {}, 31: {}, 34: {}, 150: {}, 298: {}}
	highest := 0
	for i := range steps {
		bash(t, m, fmt.Sprintf(`cd /workspace; echo %[1]d >> log; mkdir -p d%[2]d/sub; echo %[1]d > d%[2]d/sub/f; [ %[2]d != 3 ] || { rm -rf moved; mv d2 moved; }; rm -f d%[3]d/sub/f; cd /`, i, i%7, i%5))
		id, pushed := push(t, m)
		if pushed != (sandbox.Pushed{Changed: true}) {
			t.Fatalf("step %d: %+v", i, pushed)
		}
		if _, ok := states[i]; ok {
			states[i] = state{id, bash(t, m, listing)}
		}
		highest = max(highest, height(t, dir, m.ID()))
	}
	if highest < 32 || highest >= 100 {
		t.Errorf("the stack was %d layers high", highest)
	}
	native.Flattened(m.Sandbox)
	boxes := []*testSandbox{m}
	for i, s := range states {
		rewound, fork := start(t, p, s.id), start(t, p, s.id)
		boxes = append(boxes, rewound, fork)
		for name, b := range map[string]*testSandbox{"rewound": rewound, "forked": fork} {
			if tree := bash(t, b, listing); tree != s.tree {
				t.Errorf("%s to step %d:\n%s\nwant:\n%s", name, i, tree, s.tree)
			}
		}
		bash(t, rewound, "echo else > /workspace/log; rm -rf /workspace/d1")
		if _, pushed := push(t, rewound); !pushed.Changed {
			t.Errorf("after step %d: %+v", i, pushed)
		}
		if tree := bash(t, fork, listing); tree != s.tree {
			t.Errorf("a fork of step %d sees what another wrote:\n%s", i, tree)
		}
	}
	nothingLeft(t, p, dir, boxes...)
}

// scramble is a shell function that does something at random to a small tree.
const scramble = `cd /workspace; any() { find . -mindepth 1 "$@" | sort > /tmp/list; n=$(wc -l < /tmp/list); [ $n = 0 ] || sed -n "$((r%n+1))p" /tmp/list; }; new=n$((r%23)); d=$(any -type d); f=$(any -type f); o=$(any)
case $((r%13)) in 0) mkdir -p ${d:-.}/$new/in;; 1|2) echo $r > ${d:-.}/$new;; 3) [ -z "$f" ] || echo $r >> "$f";; 4) [ -z "$o" ] || rm -rf "$o";; 5) [ -z "$d" ] || mv "$d" ./$new;; 6) [ -z "$f" ] || ln -f "$f" ./l$new;;
7) [ -z "$d" ] || { rm -rf "$d"; mkdir "$d"; echo $r > "$d/again"; };; 8) [ -z "$d" ] || { rm -rf "$d"; echo file > "$d"; };; 9) [ -z "$f" ] || { rm -f "$f"; mkdir "$f"; };; 10) [ -z "$o" ] || chmod $((500+r%2*200)) "$o";;
11) ln -sfn ../$new ./s$new;; 12) [ -z "$d" ] || { rm -rf "$d"/*; mv "$d" "$d"x; mkdir "$d"; };; esac 2>/dev/null; cd /`

// Broken if a flattened layer is not what it stands for: what was deleted comes back, what was moved is lost,
// names or modes change.
func TestFlattenIsTheSame(t *testing.T) {
	p, dir := newProvider(t)
	if !p.Capabilities().Layers {
		t.Skip("no layers on this host or as this user")
	}
	native.FlattenAt(p, 4)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	m := start(t, p, "")
	boxes := []*testSandbox{m}
	// A heavy layer stays below the flattened ones, so that they have something to hide.
	bash(t, m, `cd /workspace; head -c 3000000 /dev/urandom > heavy; for i in $(seq 0 22); do mkdir -p n$i/in/n$i; echo $i > n$i/f; echo $i > n$i/in/g; ln n$i/f n$i/in/h; done; cd /`)
	push(t, m)
	bash(t, m, "cd; ln -s nowhere one; ln -P one two; mkfifo pipe; ln pipe pipe2") // in no heavy layer
	flattened := 0
	for i := range 80 {
		for range 1 + r.IntN(4) {
			bash(t, m, fmt.Sprintf("r=%d; %s", r.IntN(1<<30), scramble))
		}
		id, pushed := push(t, m)
		if pushed.Copied {
			t.Fatalf("step %d: %+v", i, pushed)
		}
		native.Flattened(m.Sandbox)
		before := bash(t, m, listing)
		if err := p.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		h := height(t, dir, m.ID())
		if h < 4 || !pushed.Changed {
			continue
		}
		flattened++
		// The sandbox sees the layers it was mounted with; one that goes on from its next checkpoints sees the
		// flattened one.
		bash(t, m, "touch /workspace/.mark; rm /workspace/.mark; touch -r /workspace /tmp/t; touch /workspace/mark")
		push(t, m)
		bash(t, m, "rm /workspace/mark; touch -r /tmp/t /workspace")
		last, _ := push(t, m)
		if i%5 != 0 {
			continue
		}
		again, old := start(t, p, last), start(t, p, id)
		boxes = append(boxes, again, old)
		now, then := bash(t, again, listing), bash(t, old, listing)
		drop := func(s string) string { // the directory itself was touched in between
			_, rest, _ := strings.Cut(s, "\n")
			return rest
		}
		if drop(now) != drop(before) || then != before {
			t.Fatalf("step %d, of %d layers: from the flattened layers\n%s\nfrom those it was pushed with\n%s\nwant\n%s", i, h, now, then, before)
		}
		if names := bash(t, again, "cd; stat -c %h one two pipe pipe2 | uniq"); names != "2\n" {
			t.Fatalf("step %d: links and pipes with two names have %s", i, names)
		}
	}
	if flattened < 5 {
		t.Errorf("%d stacks were flattened", flattened)
	}
	nothingLeft(t, p, dir, boxes...)
}

// stepUntilKilled is a server that goes on with a sandbox, says what it has saved, and is killed.
func stepUntilKilled(dir string, id outboard.SandboxID, last outboard.CheckpointID, from string) int {
	ctx := context.Background()
	p, err := native.New(native.Config{Dir: dir, Guest: guestPath()})
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	native.FlattenAt(p, 3)
	s, err := p.Open(ctx, id)
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	if last == "-" {
		last = ""
	}
	step, _ := strconv.Atoi(from)
	for ; ; step++ {
		if err := stepOnce(ctx, s, step); err != nil {
			fmt.Println("error", err)
			return 1
		}
		next := newCheckpoint()
		pushed, err := s.(sandbox.Layered).Push(ctx, next, last)
		if err != nil || pushed != (sandbox.Pushed{Changed: true}) {
			fmt.Println("error", pushed, err)
			return 1
		}
		before := last
		last = next
		fmt.Println("saved", step, last)
		if step%3 == 2 && before != "" { // the one before it is needed no more
			err = p.Forget(ctx, before)
		}
		if err == nil {
			err = p.Sweep(ctx)
		}
		if err != nil {
			fmt.Println("error", err)
			return 1
		}
	}
}

// stepOnce writes what step n of a session that is killed writes.
func stepOnce(ctx context.Context, s sandbox.Sandbox, n int) error {
	b := &testSandbox{Sandbox: s, calls: n}
	_, err := b.say(ctx, fmt.Sprintf("cd /workspace; sed -i '%[1]d,$d' log 2>/dev/null; echo %[1]d >> log; rm -rf "+
		"d; mkdir d; for i in $(seq 40); do echo %[1]d > d/$i; done; "+
		"yes %[1]d | head -c 1500000 > big; cd /", n))
	return err
}

// Broken if a server that is killed while it flattens layers, takes flattened ones into use, or empties files
// that nobody sees, leaves a sandbox, or a checkpoint, with other files than were saved, or layers that nobody
// removes.
func TestFlattenKilled(t *testing.T) {
	p, dir := newProvider(t)
	if !p.Capabilities().Layers {
		t.Skip("no layers on this host or as this user")
	}
	m := start(t, p, "")
	id, last, step := m.ID(), outboard.CheckpointID("-"), 1
	boxes := []*testSandbox{m}
	saved := map[int]outboard.CheckpointID{}
	during, lost := 0, 0
	for round := range 12 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s %d", flattenEnv, dir, id, last, step),
			binariesEnv+"="+binaries)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for stop := step + 3 + round%4; lines.Scan(); {
			var at int
			var c outboard.CheckpointID
			if _, err := fmt.Sscan(strings.TrimPrefix(lines.Text(), "saved "), &at, &c); err != nil {
				t.Fatalf("round %d: %s", round, lines.Text())
			}
			saved[at], last, step = c, c, at+1
			if step >= stop && (round%2 == 1 || flattening(dir)) || step > stop+20 {
				break
			}
		}
		if flattening(dir) {
			during++
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() { // what it had said by then
			var at int
			var c outboard.CheckpointID
			if _, err := fmt.Sscan(strings.TrimPrefix(lines.Text(), "saved "), &at, &c); err == nil {
				saved[at], last, step = c, c, at+1
			}
		}
		_ = cmd.Wait()
		if err := p.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		b := check(t, p, id, last, step)
		if b.ID() != id {
			lost++
			boxes, id = append(boxes, b), b.ID()
		} else if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d steps, killed %d times while layers were flattened, %d sandboxes lost with the swap", step-1, during,
		lost)
	for _, n := range []int{2, step / 6 * 3, step - 1} { // each third one's predecessor is forgotten
		b := start(t, p, saved[n])
		boxes = append(boxes, b)
		checkStep(t, b, n)
	}
	nothingLeft(t, p, dir, boxes...)
}

// flattening reports whether a flattened layer is there that nobody can be above yet.
func flattening(dir string) bool {
	layers, _ := filepath.Glob(filepath.Join(dir, "layers", "squash_*"))
	links, _ := filepath.Glob(filepath.Join(dir, "*", "squashed"))
	for _, l := range links {
		name, _ := os.Readlink(l)
		layers = slices.DeleteFunc(layers, func(at string) bool { return filepath.Base(at) == name })
	}
	return len(layers) > 0
}

// check opens the sandbox that was left, or begins with its last checkpoint where it cannot be used any more,
// and looks at its files.
func check(t *testing.T, p *native.Provider, id outboard.SandboxID, last outboard.CheckpointID, step int) *testSandbox {
	t.Helper()
	s, err := p.Open(t.Context(), id)
	if err != nil && !sandbox.Gone(err) {
		t.Fatal(err)
	}
	if err != nil {
		b := start(t, p, last)
		checkStep(t, b, step-1)
		return b
	}
	b := &testSandbox{Sandbox: s, calls: 1000 + step*10}
	out := bash(t, b, "wc -l < /workspace/log")
	if n, err := strconv.Atoi(strings.TrimSpace(out)); err != nil || n != step-1 && n != step {
		t.Fatalf("%d steps were saved, the sandbox has %q", step-1, out)
	}
	return b
}

func checkStep(t *testing.T, b *testSandbox, n int) {
	t.Helper()
	if out := bash(t, b, "uniq /workspace/big | head -n 1; stat -c %s /workspace/big"); out != fmt.Sprintf("%d\n1500000\n", n) {
		t.Errorf("step %d: the large file is %q", n, out)
	}
	if out := bash(t, b, "tail -n 1 /workspace/log; wc -l < /workspace/log; cat /workspace/d/* | sort | uniq -c"); strings.Join(strings.Fields(out), " ") != fmt.Sprintf("%d %d 40 %d", n, n, n) {
		t.Errorf("step %d: %q", n, out)
	}
}

// Broken if what is heavy is written again and again, or a stack cannot be shortened.
func TestChooseRun(t *testing.T) {
	small, big := int64(10<<10), int64(1<<30)
	for name, c := range map[string]struct {
		weights  []int64
		from, to int
	}{
		"all small":        {slices.Repeat([]int64{small}, 8), 0, 8},
		"on a big one":     {append(slices.Repeat([]int64{small}, 7), big), 0, 7},
		"under a big one":  {append([]int64{big}, slices.Repeat([]int64{small}, 7)...), 1, 8},
		"big ones between": {[]int64{small, big, small, big, small, small, big, small}, 0, 8},
		"the longer part":  {[]int64{small, small, small, small, big, small, small, small, small, small}, 5, 10},
	} {
		if from, to := native.ChooseRun(c.weights, 4); from != c.from || to != c.to {
			t.Errorf("%s: %d to %d, want %d to %d", name, from, to, c.from, c.to)
		}
	}
}

// blocks returns how many bytes of the disk a directory has.
func blocks(t *testing.T, dir string) (n int64) {
	t.Helper()
	seen := map[uint64]bool{}
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if st := info.Sys().(*syscall.Stat_t); !seen[st.Ino] {
			seen[st.Ino] = true
			n += st.Blocks * 512
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Broken if a large file that changes a little with each call is kept once for each of them, though the states are
// forgotten; or if what is given up was still to be seen: by the sandbox, by a checkpoint that is kept, by one
// that was started from it, or where a directory was moved.
func TestHiddenFilesAreEmptied(t *testing.T) {
	p, dir := newProvider(t)
	if !p.Capabilities().Layers {
		t.Skip("no layers on this host or as this user")
	}
	sweep := func() {
		t.Helper()
		if err := p.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	layers := filepath.Join(dir, "layers")
	const size = 8 << 20
	m := start(t, p, "")
	bash(t, m, "cd /workspace; mkdir d; head -c 8388608 /dev/urandom > big; cp big d/big; cp big two; ln two three; "+
		"cd /")
	first, _ := push(t, m)
	whole := blocks(t, layers)
	var ids []outboard.CheckpointID
	var sums []string
	for i := range 6 {
		bash(t, m, fmt.Sprintf("cd /workspace; for f in big d/big two; do printf %d | dd of=$f bs=1 seek=%d "+
			"conv=notrunc 2>/dev/null; done; cd /", i, 1000*i))
		id, _ := push(t, m)
		ids, sums = append(ids, id), append(sums, bash(t, m, "cd /workspace; sha256sum big d/big two three; cd /"))
	}
	sweep()
	if now := blocks(t, layers); now < whole+6*3*size {
		t.Errorf("%d bytes of checkpoints that are kept are %d", whole+6*3*size, now) // the control
	}
	fork := start(t, p, ids[1])
	for _, id := range append([]outboard.CheckpointID{first}, ids[:4]...) {
		if err := p.Forget(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	sweep()
	look := "cd /workspace; sha256sum big d/big two three; cd /"
	for _, c := range []struct {
		what string
		b    *testSandbox
		want string
	}{{"the sandbox", m, sums[5]}, {"a fork of what is forgotten", fork, sums[1]}, {"one of what is kept",
		start(t, p, ids[4]), sums[4]}} {
		if got := bash(t, c.b, look); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
	// Two files in each of the layers of first, 0, 2 and 3; the third has several names.
	if got, most := blocks(t, layers), whole+6*3*size-4*2*size+size/2; got > most {
		t.Errorf("%d bytes are left, not %d", got, most)
	}
	bash(t, m, "cd /workspace; mv d e; mkdir d; cp big d/big; cd /")
	moved, _ := push(t, m)
	bash(t, m, "echo > /workspace/d/new")
	push(t, m)
	for _, id := range ids[4:] {
		if err := p.Forget(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	sweep()
	if got, want := bash(t, m, "sha256sum < /workspace/e/big"), strings.Fields(strings.Split(sums[5],
		"\n")[1])[0]; !strings.HasPrefix(got, want) {
		t.Errorf("a file whose directory was moved is %s, not %s", got, want)
	}
	if got := bash(t, start(t, p, moved), "sha256sum < /workspace/e/big"); !strings.HasPrefix(got,
		strings.Fields(strings.Split(sums[5], "\n")[1])[0]) {
		t.Errorf("from its checkpoint: %s", got)
	}
}
