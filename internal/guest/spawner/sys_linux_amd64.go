package spawner

// System calls that package syscall does not know.
const (
	sysExecveat = 322
	sysSetns    = 308
)
