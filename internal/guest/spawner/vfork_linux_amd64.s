#include "textflag.h"

// func vfork(flags uintptr, pid *int32) (r, errno uintptr)
//
// The child runs on the caller's stack, and what it calls there would overwrite the address that the caller returns to. So it is in a
// register meanwhile, which is each one's own.
TEXT ·vfork(SB), NOSPLIT|NOFRAME, $0-32
	MOVQ	flags+0(FP), DI
	MOVQ	pid+8(FP), DX
	XORL	SI, SI
	XORL	R10, R10
	XORL	R8, R8
	MOVL	$56, AX // clone
	POPQ	R12
	SYSCALL
	PUSHQ	R12
	XORL	CX, CX
	CMPQ	AX, $-4095
	JCS	done
	MOVQ	AX, CX
	NEGQ	CX
	XORL	AX, AX

done:
	MOVQ	AX, r+16(FP)
	MOVQ	CX, errno+24(FP)
	RET
