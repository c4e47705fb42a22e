package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// holesAsOf is when the table below was last compared with the projects' advisories.
const holesAsOf = "2026-11-29"

// hole is a published fault by which what runs in a sandbox can leave it.
type hole struct {
	id string
	// fixed are the first versions without it, one for each release series (major.minor) that got the fix,
	// oldest first. A series that is not listed never got it, unless it is newer than all of them.
	fixed []string
}

// knownHoles are those of what sandboxes are made with. Sources: the advisories of
// github.com/opencontainers/runc (GHSA-xr7r-f8xq-vfvv, GHSA-9493-h29p-rfm2 and the two beside it),
// github.com/containers/crun, github.com/moby/moby, gVisor's issue tracker, and for the kernel the CVE
// announcements of kernel.org.
var knownHoles = map[string][]hole{
	"runc": {
		{"CVE-2024-21626", []string{"1.1.12"}},
		{"CVE-2025-31133", []string{"1.2.8", "1.3.3", "1.4.0"}},
		{"CVE-2025-52565", []string{"1.2.8", "1.3.3", "1.4.0"}},
		{"CVE-2025-52881", []string{"1.2.8", "1.3.3", "1.4.0"}},
	},
	"crun":   {{"CVE-2025-24965", []string{"1.20"}}},
	"runsc":  {{"CVE-2025-2713", []string{"20250401"}}}, // gVisor counts by days
	"docker": {{"CVE-2024-41110", []string{"23.0.15", "24.0.10", "25.0.6", "26.0.3", "26.1.5", "27.1.1"}}},
	"kernel": {{"CVE-2024-1086", []string{"5.4.269", "5.10.210", "5.15.149", "6.1.76", "6.6.15", "6.7.3"}}},
}

// holesOf returns the published holes of a version, and the newest version that fixes them all. Both are empty
// for a version without any and for a program or a version that is not understood.
func holesOf(program, version string) (ids []string, fix string) {
	have, ok := versionOf(version)
	if !ok {
		return nil, ""
	}
	for _, h := range knownHoles[program] {
		if h.in(have) {
			last := h.fixed[len(h.fixed)-1]
			ids, fix = append(ids, h.id), later(fix, last)
		}
	}
	return ids, fix
}

func (h *hole) in(have []int) bool {
	newest := true
	for _, f := range h.fixed {
		fixed, _ := versionOf(f)
		if series(have, fixed) == 0 {
			return slices.Compare(have, fixed) < 0
		}
		newest = newest && series(have, fixed) > 0
	}
	return !newest
}

// series compares the release series of two versions: major and minor, or the one number there is.
func series(a, b []int) int {
	return slices.Compare(a[:min(2, len(a))], b[:min(2, len(b))])
}

func later(a, b string) string {
	x, _ := versionOf(a)
	y, _ := versionOf(b)
	if slices.Compare(x, y) >= 0 {
		return a
	}
	return b
}

// versionOf reads the numbers that a version begins with: 1.1.5+ds1, 6.8.0-45-generic, release-20250630.0 and a
// Go module's v0.0.0-20260905035102-160fafc42237, which is the day. A candidate of a release comes before it.
func versionOf(text string) ([]int, bool) {
	text = strings.TrimPrefix(strings.TrimPrefix(text, "release-"), "v")
	if rest, ok := strings.CutPrefix(text, "0.0.0-"); ok {
		text = rest[:min(8, len(rest))]
	}
	end := strings.IndexFunc(text, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
	rest := ""
	if end >= 0 {
		text, rest = text[:end], text[end:]
	}
	var out []int
	for part := range strings.SplitSeq(strings.Trim(text, "."), ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			return nil, false
		}
		out = append(out, n)
	}
	if strings.HasPrefix(rest, "-rc") || strings.HasPrefix(rest, "-beta") || strings.HasPrefix(rest, "-alpha") {
		out = append(out[:max(1, len(out)-1)], out[len(out)-1]-1)
	}
	return out, true
}

// versionCheck says what is known of a version; nothing when there is nothing to say.
func versionCheck(name, program, version string) []native.Check {
	ids, fix := holesOf(program, version)
	if len(ids) == 0 {
		return nil
	}
	return []native.Check{{Name: name + " version", Detail: fmt.Sprintf("%s %s has published holes: %s (table of %s)",
		program, version, strings.Join(ids, ", "), holesAsOf),
		Fix: fmt.Sprintf("install %s %s or newer; a distribution can have mended an older number: its changelog "+
			"names the holes", program, fix)}}
}
