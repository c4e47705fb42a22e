#include "go_asm.h"
#include "textflag.h"

// DO makes the system call nr, and ends the child if it fails. What the child needs stays in R19, the step in R20.
#define DO(step, nr) \
	MOVD	$step, R20 \
	MOVD	nr, R8 \
	SVC \
	CMN	$4095, R0 \
	BCS	failed

// func clone3(args *cloneArgs, size uintptr, s *setting) uintptr
TEXT ·clone3(SB), NOSPLIT|NOFRAME, $0-32
	MOVD	args+0(FP), R0
	MOVD	size+8(FP), R1
	MOVD	s+16(FP), R19
	MOVD	$435, R8
	SVC
	CBZ	R0, child
	MOVD	R0, ret+24(FP)
	RET

child:
	DO(const_didSession, $157) // setsid

	MOVBU	setting_identity(R19), R0
	CBZ	R0, placed
	MOVD	setting_gid(R19), R0
	DO(const_didGroup, $144) // setgid
	MOVD	setting_uid(R19), R0
	DO(const_didUser, $146) // setuid

placed:
	MOVD	setting_dir(R19), R0
	DO(const_didDir, $49) // chdir

	MOVD	setting_output(R19), R0
	MOVD	$1, R1
	MOVD	ZR, R2
	DO(const_didFiles, $24) // dup3
	MOVD	setting_output(R19), R0
	MOVD	$2, R1
	MOVD	ZR, R2
	DO(const_didFiles, $24)

	MOVD	setting_path(R19), R0
	MOVD	setting_argv(R19), R1
	MOVD	setting_envp(R19), R2
	DO(const_didExec, $221) // execve

failed:
	NEG	R0, R0
	MOVD	R0, setting_errno(R19)
	MOVW	R20, setting_step(R19)

over:
	MOVD	$127, R0
	MOVD	$94, R8 // exit_group
	SVC
	B	over
