//go:build unix

package storetest

import (
	"os"
	"os/exec"
	"syscall"
)

// detach puts the command in a process group of its own, so that Ctrl-C leaves it time to clean up, and as root
// makes it run as the user postgres, who then owns dir.
func detach(cmd *exec.Cmd, dir string) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Getuid() != 0 {
		return nil
	}
	uid, gid, err := owner()
	if err != nil {
		return err
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return os.Chown(dir, uid, gid)
}
