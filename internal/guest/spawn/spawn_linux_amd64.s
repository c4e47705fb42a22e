#include "go_asm.h"
#include "textflag.h"

// DO makes the system call nr, and ends the child if it fails. What the child needs stays in R12, the step in R13.
#define DO(step, nr) \
	MOVL	$step, R13 \
	MOVL	nr, AX \
	SYSCALL \
	CMPQ	AX, $-4095 \
	JCC	failed

// func clone3(args *cloneArgs, size uintptr, s *setting) uintptr
TEXT ·clone3(SB), NOSPLIT|NOFRAME, $0-32
	MOVQ	args+0(FP), DI
	MOVQ	size+8(FP), SI
	MOVQ	s+16(FP), R12
	MOVL	$435, AX
	SYSCALL
	TESTQ	AX, AX
	JZ	child
	MOVQ	AX, ret+24(FP)
	RET

child:
	DO(const_didSession, $112) // setsid

	MOVBLZX	setting_identity(R12), AX
	TESTL	AX, AX
	JZ	placed
	MOVQ	setting_gid(R12), DI
	DO(const_didGroup, $106) // setgid
	MOVQ	setting_uid(R12), DI
	DO(const_didUser, $105) // setuid

placed:
	MOVQ	setting_dir(R12), DI
	DO(const_didDir, $80) // chdir

	MOVQ	setting_output(R12), DI
	MOVL	$1, SI
	XORL	DX, DX
	DO(const_didFiles, $292) // dup3
	MOVQ	setting_output(R12), DI
	MOVL	$2, SI
	XORL	DX, DX
	DO(const_didFiles, $292)

	MOVQ	setting_path(R12), DI
	MOVQ	setting_argv(R12), SI
	MOVQ	setting_envp(R12), DX
	DO(const_didExec, $59) // execve

failed:
	NEGQ	AX
	MOVQ	AX, setting_errno(R12)
	MOVL	R13, setting_step(R12)

over:
	MOVL	$127, DI
	MOVL	$231, AX // exit_group
	SYSCALL
	JMP	over
