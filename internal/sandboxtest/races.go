//go:build linux

package sandboxtest

import (
	"errors"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard/internal/guest"
)

// swapping exchanges a directory and a file with links that lead out, as fast as it can, until it is killed.
const swapping = `import ctypes, os
os.makedirs("w/d"); os.chdir("w")
open("d/only-root", "w").write("inside"); open("f", "w").write("inside")
os.symlink("/etc", "dl"); os.symlink("/etc/only-root", "fl"); print("ready", flush=True)
rename, exchange = ctypes.CDLL(None).renameat2, 2
while True:
    assert rename(-100, b"d", -100, b"dl", exchange) == 0 and rename(-100, b"f", -100, b"fl", exchange) == 0
`

// If this fails, a program that exchanges files for links while a client opens them reaches files that only the
// guest may: reading what no tool can read, or writing where none can write.
func testRaces(t *testing.T, r *rig) {
	if !r.p.Capabilities().SeparateID {
		t.Log("tools share the guest's identity here: there is nothing that only the guest may")
		return
	}
	b := r.create(t)
	if res := b.run(b.bash("type python3")); res.ExitCode == nil || *res.ExitCode != 0 {
		t.Skip("no python3 inside")
	}
	made := b.start(guest.ProcessStart{Argv: shell("printf outside > /etc/only-root; chmod 600 /etc/only-root; " +
		"chmod 755 /home/user; stat -c %a /etc/only-root"), User: "root"})
	made.wait()
	want(t, "made by root", made.stdout.String(), "600\n")
	want(t, "the control: it is there to be read", b.readFile("/etc/only-root", 0, 0), "outside")
	b.fails("cat /etc/only-root")
	swap := b.start(guest.ProcessStart{Argv: []string{"python3", "-c", swapping}, Cwd: "/home/user"})
	swap.until(t, "ready")
	opens, inside, refused, written := r.many(10_000), 0, 0, 0
	if testing.Short() {
		opens = 1_000
	}
	for i := range opens {
		var out strings.Builder
		var err error
		switch i % 4 {
		case 0:
			err = b.ReadFile(ctx(t), ref("/home/user/w/d/only-root"), 0, 0, &out)
		case 1:
			err = b.ReadFile(ctx(t), ref("/home/user/w/f"), 0, 0, &out)
		case 2:
			err = b.Get(ctx(t), "/home/user/w/f", &out)
		case 3:
			if _, err = b.WriteFile(ctx(t), ref("/home/user/w/d/only-root"), nil,
				strings.NewReader("inside")); err == nil {
				written++
			}
		}
		switch got := out.String(); {
		case err != nil:
			if _, ok := errors.AsType[*guest.Error](err); !ok {
				t.Fatalf("open %d: %v", i, err)
			}
			refused++
		case i%4 == 3:
		case got == "inside" || got == "": // empty: it is being written
			inside++
		default:
			t.Fatalf("open %d gave %q", i, got)
		}
	}
	// it would have ended by itself had an exchange failed
	if err := b.SignalProcess(ctx(t), swap.ref(), 9); err != nil {
		t.Errorf("what exchanges is over: %v, %s", err, swap.stderr.String())
	}
	swap.wait()
	want(t, "the file outside", b.readFile("/etc/only-root", 0, 0), "outside")
	if inside == 0 || refused == 0 || written == 0 {
		t.Errorf("the control: %d read, %d written, %d refused: nothing raced", inside, written, refused)
	}
	t.Logf("%d opens: %d read inside, %d written inside, %d refused", opens, inside, written, refused)
}
