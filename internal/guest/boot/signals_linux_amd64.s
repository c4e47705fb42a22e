#include "textflag.h"

// A handler that does nothing.
TEXT idle<>(SB), NOSPLIT|NOFRAME, $0-0
	RET

// A handler that ends the process with status 2 for what the kernel reports of itself: then si_code is positive.
TEXT fault<>(SB), NOSPLIT|NOFRAME, $0-0
	CMPL	8(SI), $0
	JLE	sent
	MOVL	$2, DI
	MOVL	$231, AX // exit_group
	SYSCALL

sent:
	RET

// What handlers return to.
TEXT restorer<>(SB), NOSPLIT|NOFRAME, $0-0
	MOVL	$15, AX // rt_sigreturn
	SYSCALL
	INT	$3

// func handlers() (idle, fault uintptr)
TEXT ·handlers(SB), NOSPLIT, $0-16
	LEAQ	idle<>(SB), AX
	MOVQ	AX, idle+0(FP)
	LEAQ	fault<>(SB), AX
	MOVQ	AX, fault+8(FP)
	RET

// func restorerPC() uintptr
TEXT ·restorerPC(SB), NOSPLIT, $0-8
	LEAQ	restorer<>(SB), AX
	MOVQ	AX, ret+0(FP)
	RET
