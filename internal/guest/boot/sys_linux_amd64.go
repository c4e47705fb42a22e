package boot

const sysSeccomp = 317
