package storetest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// server starts PostgreSQL at the first call and returns the URL of its first database. The server is a child of
// a shell that waits for the end of its input, which comes when this process ends, however it does; then it
// stops the server and removes its directory.
var server = sync.OnceValues(start)

// serverScript runs with the directory of the binaries, a private directory and the server's options as its
// arguments. A connection is served through a socket in that directory only; fsync stays on, as the tests
// measure and kill.
const serverScript = `
bin=$1 dir=$2 opts=$3
fail() { cat "$dir/log" >&2; rm -rf "$dir"; exit 1; }
"$bin/initdb" -D "$dir/data" -U postgres -A trust -E UTF8 --locale=C --no-sync >"$dir/log" 2>&1 || fail
"$bin/pg_ctl" -D "$dir/data" -l "$dir/log" -w -t 60 -o "$opts" start >/dev/null 2>&1 || fail
echo ready
cat >/dev/null
"$bin/pg_ctl" -D "$dir/data" -m immediate stop >/dev/null 2>&1
rm -rf "$dir"
`

func start() (string, error) {
	bin, err := binaries()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("/tmp", "outboard-pg-") // not TMPDIR: the path of a socket is short
	if err != nil {
		return "", err
	}
	opts := fmt.Sprintf("-k %s -c listen_addresses='' -c fsync=on -c max_connections=200 -c shared_buffers=64MB", dir)
	cmd := exec.Command("/bin/sh", "-c", serverScript, "sh", bin, dir, opts)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	if err := detach(cmd, dir); err != nil {
		return "", err
	}
	in, err := cmd.StdinPipe() // never written to
	if err != nil {
		return "", err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("starting PostgreSQL: %w", err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != "ready" {
		return "", fmt.Errorf("starting PostgreSQL in %s: %w", dir, errors.Join(err, cmd.Wait()))
	}
	go func() { // ends with this process, and holds the input open until then
		_, _ = io.Copy(io.Discard, out)
		_ = errors.Join(in.Close(), cmd.Wait())
	}()
	q := url.Values{"host": {dir}, "user": {"postgres"}}
	return (&url.URL{Scheme: "postgres", Path: "/postgres", RawQuery: q.Encode()}).String(), nil
}

// binaries finds the directory of initdb: in PATH, or the newest of a Debian installation.
func binaries() (string, error) {
	if p, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(p), nil
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(found) == 0 {
		return "", errors.New("initdb is not installed")
	}
	version := func(p string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(p)))) // 0 sorts first
		return n
	}
	return filepath.Dir(slices.MaxFunc(found, func(a, b string) int { return version(a) - version(b) })), nil
}

// owner is the user PostgreSQL must run as when this process is root, which it refuses to be.
func owner() (uid, gid int, err error) {
	u, err := user.Lookup("postgres")
	if err != nil {
		return 0, 0, fmt.Errorf("running as root, and PostgreSQL refuses that: %w", err)
	}
	uid, uerr := strconv.Atoi(u.Uid)
	gid, gerr := strconv.Atoi(u.Gid)
	return uid, gid, errors.Join(uerr, gerr)
}
