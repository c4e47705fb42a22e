package boot

const (
	sysSeccomp = 277
	sysSetns   = 268
)
