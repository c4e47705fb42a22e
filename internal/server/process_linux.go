package server

import (
	"bytes"
	"fmt"
	"os"
	"strings"
)

// KernelID names this boot of the machine and this pid namespace.
func KernelID() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	ns, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(boot)) + ":" + ns
}

// ProcessStart returns when a process started, in a form that differs for any other process that gets the same
// pid; "" when there is no such process, or only its zombie.
func ProcessStart(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	i := bytes.LastIndexByte(b, ')') // the name before it may hold anything
	f := bytes.Fields(b[i+1:])
	if i < 0 || len(f) < 20 || f[0][0] == 'Z' || f[0][0] == 'X' {
		return ""
	}
	return string(f[19])
}
