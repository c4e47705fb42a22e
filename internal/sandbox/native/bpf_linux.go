package native

import (
	"slices"

	"golang.org/x/sys/unix"
)

// A small assembler for seccomp programs: data in, classic BPF out.

// Offsets in struct seccomp_data. Arguments are 64 bits; both architectures are little-endian, so the low half
// comes first, and every argument checked here is 32 bits wide in the kernel, but for lengths, whose halves are
// checked one by one.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

const allow = unix.SECCOMP_RET_ALLOW

// errno is the verdict "fail with e".
func errno(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }

// checked is a call with conditions on its arguments: the first clause that matches decides, else the verdict.
type checked struct {
	call    uint32
	why     string
	clauses []clause
	verdict uint32
}

type clause struct {
	when []cond // all must hold
	then uint32
}

// cond holds when the argument has any of bits, or, under mask, is one of in (none of them, when not is set).
type cond struct {
	arg  int
	high bool // the upper half of it
	bits uint32
	mask uint32 // 0 = all
	in   []uint32
	not  bool
}

func is(arg int, v uint32) cond               { return cond{arg: arg, in: []uint32{v}} }
func isIn(arg int, v ...uint32) cond          { return cond{arg: arg, in: v} }
func notIn(arg int, v ...uint32) cond         { return cond{arg: arg, in: v, not: true} }
func masked(arg int, mask, value uint32) cond { return cond{arg: arg, mask: mask, in: []uint32{value}} }

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

func ret(verdict uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: verdict}
}

// compile returns code that ends in a return on every path.
func (c *checked) compile() []unix.SockFilter {
	code := []unix.SockFilter{ret(c.verdict)}
	for _, cl := range slices.Backward(c.clauses) {
		body := []unix.SockFilter{ret(cl.then)}
		for _, cd := range slices.Backward(cl.when) {
			body = append(cd.compile(uint8(len(body))), body...)
		}
		code = append(body, code...)
	}
	return code
}

// compile returns code that falls through when the condition holds and else skips what follows.
func (c *cond) compile(skip uint8) []unix.SockFilter {
	offset := offArgs + 8*uint32(c.arg)
	if c.high {
		offset += 4
	}
	code := []unix.SockFilter{load(offset)}
	if c.bits != 0 {
		return append(code, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: c.bits, Jf: skip})
	}
	if c.mask != 0 {
		code = append(code, unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: c.mask})
	}
	for i, v := range c.in {
		rest := uint8(len(c.in) - 1 - i) // comparisons after this one
		in := unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: v, Jt: rest}
		if c.not {
			in.Jt = rest + skip
		} else if rest == 0 {
			in.Jf = skip
		}
		code = append(code, in)
	}
	return code
}

// segment is a run of system call numbers that share their code.
type segment struct {
	first uint32
	code  []unix.SockFilter
}

func merge(blocks [][]unix.SockFilter) []segment {
	var out []segment
	for nr, code := range blocks {
		if n := len(out); n > 0 && slices.Equal(out[n-1].code, code) {
			continue
		}
		out = append(out, segment{first: uint32(nr), code: code})
	}
	return out
}

// search returns a binary search for the loaded number over the segments.
func search(s []segment) []unix.SockFilter {
	if len(s) == 1 {
		return s[0].code
	}
	mid := len(s) / 2
	low, high := search(s[:mid]), search(s[mid:])
	jump := unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: s[mid].first}
	var code []unix.SockFilter
	if len(low) <= 255 {
		jump.Jt = uint8(len(low))
		code = append(code, jump)
	} else { // conditional jumps reach 255 instructions; an unconditional one reaches any
		jump.Jf = 1
		code = append(code, jump, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(len(low))})
	}
	return append(append(code, low...), high...)
}
