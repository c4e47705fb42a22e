package boot

const (
	sysSeccomp = 317
	sysSetns   = 308
)
