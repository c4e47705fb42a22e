// Command outboard is the whole product in one program: the server, and the command line that talks
// to it.
//
// main.go turns signals and errors into a context and an exit code, root.go holds what commands share, process.go
// starts the server that internal/server puts together, and each command is one file.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// heapReserve counts as heap and is never written, so it takes addresses and no memory. The collector runs when
// the heap has doubled: a server's is some megabytes, and was collected twenty times a second while commits
// shared a disk (a tenth more of them without).
//
// A Builder's buffer is memory that nobody clears. A slice's is cleared where part of it was in use before, as
// it is at most starts: then all of it is memory, and to make it so takes longer than many a command.
var heapReserve strings.Builder

const heapReserveSize = 64 << 20

func main() {
	heapReserve.Grow(heapReserveSize)
	seldom()
	if err := noCoreDumps(); err != nil {
		fmt.Fprintln(os.Stderr, "outboard:", err)
		os.Exit(1)
	}
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv))
}

// run executes one command line and returns its exit code. Everything a command may touch comes in as an argument.
func run(args []string, in io.Reader, out, errs io.Writer, env func(string) string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A reader that goes away (outboard logs S | head) ends the write, not the process: what a command started
	// must be put away. Handling the signal, rather than ignoring it, leaves it as it was for programs that are
	// started from here.
	gone := make(chan os.Signal, 1)
	signal.Notify(gone, syscall.SIGPIPE)
	defer signal.Stop(gone)
	a := &app{in: in, out: out, errs: errs, env: env}
	root := a.root()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !a.started {
		a.json = a.json || asksJSON(args)
	}
	return a.finish(cmd, err)
}
