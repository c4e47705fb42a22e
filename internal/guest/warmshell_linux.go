package guest

import (
	"context"
	"os"
	"strings"
	"syscall"
	"time"
)

// A guest that waits to be somebody's has time: it starts a shell and makes what the first command needs. The
// shell has run nothing and knows nothing of anybody; what distinguishes it from one that is started on demand
// (variables, working directory) it is told together with its first command.

// keepWarmShell starts the warm shell, where there is a bash. It waits in /, so that the workspace can still be
// attached under it.
func (ss *shells) keepWarmShell() error {
	if _, err := os.Stat("/bin/bash"); err != nil {
		return nil
	}
	sh := new(shell)
	if err := ss.begin(sh, "/"); err != nil {
		return err
	}
	ss.warmShell = sh
	p, err := ss.s.pipes.make()
	if err != nil {
		return err
	}
	p.w.Close()
	ss.s.pipes.give(p, true)
	return nil
}

// settleTimeout is how long a guest waits for its warm shell. A bash that takes longer is one that hangs, and
// the first command meets it.
const settleTimeout = 5 * time.Second

// settle returns when the warm shell has read all that it is prepared with, or has ended: until then it would
// take its time from the first command.
func (ss *shells) settle(ctx context.Context) {
	if ss.warmShell == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	if _, err := ss.warmShell.ctl.WriteString("__outboard_end settled\n"); err != nil {
		return // it has ended
	}
	select {
	case <-ss.warmShell.lines:
	case <-ctx.Done():
	}
}

// takeWarmShell makes the warm shell's process that of sh, if there is one that fits.
func (ss *shells) takeWarmShell(sh *shell) bool {
	ss.mu.Lock()
	warmShell := ss.warmShell
	ss.warmShell = nil
	ss.mu.Unlock()
	if warmShell == nil {
		return false
	}
	var st syscall.Stat_t
	first, ok := ss.tellLate()
	select {
	case <-warmShell.proc.done:
		ok = false
	default:
	}
	if !ok || syscall.Fstat(int(warmShell.file.Fd()), &st) != nil || st.Nlink == 0 {
		warmShell.end(true)
		return false
	}
	sh.proc, sh.ctl, sh.lines, sh.file, sh.first = warmShell.proc, warmShell.ctl, warmShell.lines, warmShell.file, first
	return true
}

// tellLate returns the commands that make a warm shell what a shell that is started now would be. It is false
// where only a start does it: for names that a shell cannot export, and for those that bash itself looks at when
// it starts.
func (ss *shells) tellLate() (string, bool) {
	var b strings.Builder
	// All or nothing: an interrupt may come in the middle, and then all of it is told again.
	b.WriteString("if builtin [ -z \"${__outboard_told-}\" ];then\n")
	b.WriteString("builtin cd -- " + quote(ss.s.cfg.real(ss.s.base())) +
		" 2>/dev/null;builtin unset OLDPWD;builtin export OLDPWD\n")
	for _, kv := range ss.late {
		name, value, _ := strings.Cut(kv, "=")
		if !exportable(name) {
			return "", false
		}
		b.WriteString("export " + name + "=" + quote(value) + "\n")
	}
	return b.String() + "__outboard_told=1;fi\n", true
}

// startNames begin the names of variables that bash or its loader reads at the start, or treats in another way
// after it.
var startNames = []string{"BASH", "LD_", "GLIBC_", "MALLOC_", "PS", "IFS", "ENV", "POSIX", "SHELL", "HIST", "INPUTRC",
	"LC_", "LANG",
	"UID", "EUID", "PPID", "PWD", "OLDPWD", "OPT", "PROMPT", "RANDOM", "SECONDS", "EPOCH", "SRANDOM", "GROUPS", "DIRSTACK", "FUNCNAME", "LINENO",
	"COMP", "READLINE", "MAIL", "TMOUT", "IGNOREEOF", "TERM", "__outboard"}

func exportable(name string) bool {
	for i, r := range name {
		letter := r == '_' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	for _, p := range startNames {
		if strings.HasPrefix(name, p) {
			return false
		}
	}
	return name != ""
}
