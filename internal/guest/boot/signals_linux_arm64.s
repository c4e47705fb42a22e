#include "textflag.h"

// A handler that does nothing.
TEXT idle<>(SB), NOSPLIT|NOFRAME, $0-0
	RET

// A handler that ends the process with status 2 for what the kernel reports of itself: then si_code is positive.
TEXT fault<>(SB), NOSPLIT|NOFRAME, $0-0
	MOVW	8(R1), R2
	CMPW	$0, R2
	BLE	sent
	MOVD	$2, R0
	MOVD	$94, R8 // exit_group
	SVC

sent:
	RET

// What handlers return to.
TEXT restorer<>(SB), NOSPLIT|NOFRAME, $0-0
	MOVD	$139, R8 // rt_sigreturn
	SVC
	BRK

// func handlers() (idle, fault uintptr)
TEXT ·handlers(SB), NOSPLIT, $0-16
	MOVD	$idle<>(SB), R0
	MOVD	R0, idle+0(FP)
	MOVD	$fault<>(SB), R0
	MOVD	R0, fault+8(FP)
	RET

// func restorerPC() uintptr
TEXT ·restorerPC(SB), NOSPLIT, $0-8
	MOVD	$restorer<>(SB), R0
	MOVD	R0, ret+0(FP)
	RET
