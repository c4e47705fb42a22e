package guest

import "syscall"

// fstatat describes name in dir without following it.
func fstatat(dir int, name string, st *syscall.Stat_t) error {
	return syscall.Fstatat(dir, name, st, atNoFollow)
}
