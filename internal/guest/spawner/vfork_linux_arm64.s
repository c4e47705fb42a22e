#include "textflag.h"

// func vfork(flags uintptr, pid *int32) (r, errno uintptr)
//
// The child runs on the caller's stack. The address to return to stays in a register, which is each one's own.
TEXT ·vfork(SB), NOSPLIT|NOFRAME, $0-32
	MOVD	flags+0(FP), R0
	MOVD	$0, R1
	MOVD	pid+8(FP), R2
	MOVD	$0, R3
	MOVD	$0, R4
	MOVD	$220, R8 // clone
	SVC
	MOVD	$0, R1
	CMN	$4095, R0
	BCC	done
	NEG	R0, R1
	MOVD	$0, R0

done:
	MOVD	R0, r+16(FP)
	MOVD	R1, errno+24(FP)
	RET
