#include "textflag.h"

// func cloneShared(flags, stack uintptr, c *child) (pid uintptr, errno syscall.Errno)
//
// The parent returns. The child, on its own stack, calls live with c, which does not return.
TEXT ·cloneShared(SB),NOSPLIT,$0-40
	MOVQ	flags+0(FP), DI
	MOVQ	stack+8(FP), SI
	MOVQ	c+16(FP), R12 // kept over the system call
	XORL	DX, DX
	XORL	R10, R10
	XORL	R8, R8
	MOVL	$56, AX // clone
	SYSCALL
	CMPQ	AX, $0xfffffffffffff001
	JCC	failed
	TESTQ	AX, AX
	JZ	born
	MOVQ	AX, pid+24(FP)
	MOVQ	$0, errno+32(FP)
	RET
failed:
	NEGQ	AX
	MOVQ	$-1, pid+24(FP)
	MOVQ	AX, errno+32(FP)
	RET
born:
	MOVQ	R12, 0(SP)
	CALL	·live(SB)
	INT	$3
