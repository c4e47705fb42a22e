package spawner

// System calls that package syscall does not know.
const (
	sysExecveat = 281
	sysSetns    = 268
)
