//go:build linux

package sandboxtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// Config says which provider the suite is for.
type Config struct {
	// New returns the provider under test. What it makes must be gone when the test ends.
	New func(t testing.TB) sandbox.Provider
	// Spec, when set, adjusts what the suite creates (a root file system, an isolation).
	Spec func(*sandbox.Spec)
	// Kill, when set, ends a sandbox the hard way: its guest and everything in it dies at once.
	Kill func(p sandbox.Provider, id outboard.SandboxID) error
	// NoPaths says that commands inside do not find the sandbox's directories under their names (see Bare).
	NoPaths bool
	// OwnKernel says that each sandbox has a kernel of its own, in user space. Processes start many times slower
	// than on the host, so the suite makes fewer of them; and there is no filter of system calls, which would
	// protect a kernel that others use.
	OwnKernel bool
	// Part, when set, chooses what to run by name: under the race detector a provider of which there are many
	// like it runs a few.
	Part func(name string) bool
}

// many is how often to do something that starts a process.
func (c Config) many(n int) int {
	if c.OwnKernel {
		return n / 10
	}
	return n
}

// patience bounds every single operation of the suite, so that what hangs is named. The longest makes 3,000
// processes one after the other, which takes half a minute on a busy machine whose processors are slow to make
// any.
const patience = 3 * time.Minute

// parts are the suite, in the order in which they run.
var parts = []struct {
	name string
	test func(*testing.T, *rig)
}{
	{"Create", testCreate},
	{"Open", testOpen},
	{"Destroy", testDestroy},
	{"Lost", testLost},
	{"Start", testStart},
	{"Follow", testFollow},
	{"Refusals", testRefusals},
	{"Duplicates", testDuplicates},
	{"Tombstone", testTombstone},
	{"Ack", testAck},
	{"Reattach", testReattach},
	{"Parallel", testParallel},
	{"Canceled", testCanceled},
	{"Shell", testShell},
	{"ShellExit", testShellExit},
	{"ShellRestart", testShellRestart},
	{"Environment", testEnvironment},
	{"Background", testBackground},
	{"Timeout", testTimeout},
	{"Kill", testKill},
	{"Output", testOutput},
	{"Exec", testExec},
	{"FileTools", testFileTools},
	{"EditTool", testEditTool},
	{"SearchTools", testSearchTools},
	{"FileRefusals", testFileRefusals},
	{"Transfer", testTransfer},
	{"Uploads", testUploads},
	{"List", testList},
	{"SaveLoad", testSaveLoad},
	{"SaveDelta", testSaveDelta},
	{"SaveMapped", testSaveMapped},
	{"SaveMany", testSaveMany},
	{"SaveTooLarge", testSaveTooLarge},
	{"SaveAttrs", testSaveAttrs},
	{"SaveHostile", testSaveHostile},
	{"LoadRefusals", testLoadRefusals},
	{"LoadAttrs", testLoadAttrs},
	{"LoadLinks", testLoadLinks},
	{"Process", testProcess},
	{"ProcessAttach", testProcessAttach},
	{"ProcessHangUp", testProcessHangUp},
	{"ProcessOutput", testProcessOutput},
	{"Terminal", testTerminal},
	{"ProcessEnd", testProcessEnd},
	{"ProcessUser", testProcessUser},
	{"DialPort", testDialPort},
	{"Entries", testEntries},
	{"EntryLinks", testEntryLinks},
	{"EntryWhole", testEntryWhole},
	{"Races", testRaces},
	{"Watch", testWatch},
	{"Freeze", testFreeze},
	{"Memory", testMemory},
	{"MemoryTold", testMemoryTold},
	{"MemoryOfMany", testMemoryOfMany},
	{"Pids", testPids},
	{"Disk", testDisk},
	{"CPU", testCPU},
	{"Size", testSize},
	{"ForkBomb", testForkBomb},
	{"Zombies", testZombies},
	{"Files", testFiles},
	{"LogFlood", testLogFlood},
	{"DeepTree", testDeepTree},
	{"KernelObjects", testKernelObjects},
	{"SocketBuffers", testSocketBuffers},
	{"Terminals", testTerminals},
	{"Shares", testShares},
	{"Neighbours", testNeighbours},
	{"OddNames", testOddNames},
	{"PidReuse", testPidReuse},
	{"Identity", testIdentity},
	{"Network", testNetwork},
	{"Isolation", testIsolation},
}

// Run runs the conformance suite. Parts that need a capability run when the provider claims it.
func Run(t *testing.T, c Config) {
	for _, part := range parts {
		if c.Part != nil && !c.Part(part.name) {
			continue
		}
		t.Run(part.name, func(t *testing.T) { part.test(t, &rig{Config: c, p: c.New(t)}) })
	}
}

// rig is one part's provider.
type rig struct {
	Config
	p sandbox.Provider
}

func ctx(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func (r *rig) spec() sandbox.Spec {
	s := sandbox.Spec{
		ID:         outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox),
		Generation: outboard.NewID[string]("gen"),
		Env:        map[string]string{"OUTBOARD_SUITE": "value from the spec"},
	}
	if r.Spec != nil {
		r.Spec(&s)
	}
	return s
}

// create makes a sandbox that ends with the test.
func (r *rig) create(t *testing.T, change ...func(*sandbox.Spec)) *box {
	t.Helper()
	spec := r.spec()
	for _, f := range change {
		f(&spec)
	}
	sb, err := r.p.Create(ctx(t), spec)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	t.Cleanup(func() {
		sb.Close()
		if err := r.p.Destroy(context.Background(), spec.ID); err != nil {
			t.Errorf("Destroy: %v", err)
		}
	})
	return &box{Sandbox: sb, t: t, spec: spec, caps: r.p.Capabilities()}
}

// box is a sandbox with the suite's shorthands.
type box struct {
	sandbox.Sandbox
	t    *testing.T
	spec sandbox.Spec
	caps sandbox.Capabilities
	keys int
}

// call returns a Start with a fresh key.
func (b *box) call(op string, input any) guest.Start {
	b.t.Helper()
	raw, err := json.Marshal(input)
	if err != nil {
		b.t.Fatal(err)
	}
	b.keys++
	return guest.Start{
		Key: fmt.Sprintf("%s/call_%d", b.spec.ID,
			b.keys), Epoch: 1, Generation: b.spec.Generation, Digest: "digest", Op: op, Input: raw,
		Shell: "main", TimeoutMs: patience.Milliseconds(),
	}
}

func (b *box) bash(command string) guest.Start {
	return b.call("bash", map[string]any{"command": command})
}

// run starts a call and waits for its end.
func (b *box) run(s guest.Start) guest.Result {
	b.t.Helper()
	if _, err := b.Start(ctx(b.t), s); err != nil {
		b.t.Fatalf("Start %s %s: %v", s.Op, s.Input, err)
	}
	return b.wait(s)
}

func (b *box) wait(s guest.Start) guest.Result {
	b.t.Helper()
	r, err := b.Wait(ctx(b.t), s.Key, s.Epoch)
	if err != nil {
		b.t.Fatalf("Wait for %s %s: %v", s.Op, s.Input, err)
	}
	if r.Key != s.Key {
		b.t.Fatalf("Wait for %s answered about %s", s.Key, r.Key)
	}
	return r
}

// sh runs a command that must succeed and returns its output.
func (b *box) sh(command string) string {
	b.t.Helper()
	r := b.run(b.bash(command))
	if r.State != guest.StateDone || r.Cause != "exited" || r.ExitCode == nil || *r.ExitCode != 0 {
		b.t.Fatalf("%s: %s\n%s", command, show(r), r.Output)
	}
	return string(r.Output)
}

// fails runs a command that must not succeed, and returns what it said.
func (b *box) fails(command string) string {
	b.t.Helper()
	r := b.run(b.bash(command))
	if r.Cause == "exited" && r.ExitCode != nil && *r.ExitCode == 0 {
		b.t.Errorf("%s: succeeded\n%s", command, r.Output)
	}
	return string(r.Output)
}

// tool runs a file tool that must succeed and returns its output.
func (b *box) tool(op string, input map[string]any) string {
	b.t.Helper()
	r := b.run(b.call(op, input))
	if r.State != guest.StateDone || r.Cause != "exited" {
		b.t.Fatalf("%s %v: %s\n%s", op, input, show(r), r.Output)
	}
	return string(r.Output)
}

// refuses runs a file tool that must refuse, and checks that it says why.
func (b *box) refuses(op string, input map[string]any, why string) {
	b.t.Helper()
	r := b.run(b.call(op, input))
	if r.State != guest.StateDone || r.Cause != "error" || !strings.Contains(string(r.Output), why) {
		b.t.Errorf("%s %v: want an error with %q, got %s\n%s", op, input, why, show(r), r.Output)
	}
}

func (b *box) put(path, content string) {
	b.t.Helper()
	if err := b.Put(ctx(b.t), path, 0o644, false, strings.NewReader(content)); err != nil {
		b.t.Fatalf("Put %s: %v", path, err)
	}
}

func (b *box) get(path string) string {
	b.t.Helper()
	var w strings.Builder
	if err := b.Get(ctx(b.t), path, &w); err != nil {
		b.t.Fatalf("Get %s: %v", path, err)
	}
	return w.String()
}

// until runs a command again until it succeeds. The command itself waits, inside, so this does not spin.
func (b *box) until(command string) {
	b.t.Helper()
	b.sh("for i in $(seq 600); do if " + command +
		"; then exit_ok=1; break; fi; sleep 0.05; done; [ \"$exit_ok\" = 1 ]")
}

func show(r guest.Result) string {
	exit := "none"
	if r.ExitCode != nil {
		exit = fmt.Sprint(*r.ExitCode)
	}
	return fmt.Sprintf("state %s, cause %s, exit %s, truncated %v", r.State, r.Cause, exit, r.Truncated)
}

// refusal is the guest's code in err, or what err says instead.
func refusal(err error) string {
	if e, ok := errors.AsType[*guest.Error](err); ok {
		return e.Code
	}
	return fmt.Sprint(err)
}

func want[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func wantKind(t *testing.T, what string, err error, kind outboard.Kind) {
	t.Helper()
	if err == nil || outboard.KindOf(err) != kind {
		t.Errorf("%s: got %v (kind %s), want kind %s", what, err, outboard.KindOf(err), kind)
	}
}
