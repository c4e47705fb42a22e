package tool

import (
	"bytes"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
)

// maxEncoded bounds the JSON form of a result's text. Output full of control characters grows sixfold when it is
// encoded, and the event must stay under outboard.MaxEventData with its other fields.
const maxEncoded = outboard.MaxEventData - 16<<10

// Finish renders the guest's final answer to a call for the model and the log. The text is valid UTF-8, bounded,
// and never empty. A result that is not final is an unknown outcome. limits are the sandbox's.
func Finish(call outboard.CallID, res guest.Result, limits outboard.SandboxLimits) outboard.CallFinished {
	fin := outboard.CallFinished{
		Call:       call,
		Outcome:    outboard.OutcomeOK,
		ExitCode:   res.ExitCode,
		Truncated:  res.Truncated,
		DurationUs: res.DurationUs,
	}
	if res.Truncated {
		fin.FullOutput = Clean(res.FullPath)
	}
	note := conclude(&fin, res)
	var notes []string
	if res.Truncated && fin.FullOutput != "" && !strings.Contains(string(res.Output), res.FullPath) {
		notes = append(notes, fmt.Sprintf("(output truncated; all of it is in %s)", fin.FullOutput))
	}
	for _, n := range []string{processLimitHint(res.Output, limits.Pids), fullHint(res.Output, limits.DiskBytes),
		memoryNote(res.MemoryLimit), note} {
		if n != "" {
			notes = append(notes, n)
		}
	}
	tail := strings.Join(notes, "\n")
	body, cut := Fit(Clean(string(res.Output)), outboard.MaxToolOutput-len(tail)-1, maxEncoded-6*len(tail))
	fin.Truncated = fin.Truncated || cut
	fin.Content = []outboard.Content{outboard.Text(join(body, tail))}
	return fin
}

// Failed is the outcome of a call that never ran or whose tool refused it, with a reason for the model.
func Failed(call outboard.CallID, outcome outboard.Outcome, reason string) outboard.CallFinished {
	body, cut := Fit(Clean(reason), outboard.MaxToolOutput, maxEncoded)
	return outboard.CallFinished{
		Call:      call,
		Outcome:   outcome,
		IsError:   true,
		Truncated: cut,
		Content:   []outboard.Content{outboard.Text(join(body, ""))},
	}
}

// conclude sets the outcome and returns the line that tells the model about it, or "".
func conclude(fin *outboard.CallFinished, res guest.Result) string {
	took := (time.Duration(res.DurationUs) * time.Microsecond).Round(100 * time.Millisecond)
	fin.IsError = true
	switch {
	case res.State == guest.StateKilled:
		fin.Outcome = outboard.OutcomeCanceled
		return "canceled before it started"
	case res.State != guest.StateDone:
		fin.Outcome = outboard.OutcomeUnknown
		return "outcome unknown: the call was started, and whether it ran to its end cannot be told"
	}
	switch res.Cause {
	case "timeout":
		fin.Outcome = outboard.OutcomeError
		if told(res.Output, "timed out") {
			return ""
		}
		return fmt.Sprintf("timed out after %v and was killed", took)
	case "killed":
		fin.Outcome = outboard.OutcomeCanceled
		if told(res.Output, "killed") {
			return ""
		}
		return fmt.Sprintf("canceled after %v: it was killed while it ran", took)
	case "error":
		fin.Outcome = outboard.OutcomeError
		return ""
	}
	if res.ExitCode != nil && *res.ExitCode != 0 {
		return fmt.Sprintf("exit code %d", *res.ExitCode)
	}
	fin.IsError = false
	return ""
}

// memoryNote says that the sandbox's limit on memory was hit, which an exit code does not, or is "". The program
// that the kernel ended need not be the one whose exit code is told: it may have been one of many, or of another
// call at the same time.
func memoryNote(limit int64) string {
	if limit == 0 {
		return ""
	}
	return fmt.Sprintf("(the sandbox's memory limit of %s was hit while this ran, and the kernel ended a program)",
		bytesText(limit))
}

func bytesText(n int64) string {
	if n%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d bytes", n)
}

// told reports whether the last line of the output is the guest's own word on how the call ended, such as
// "[timed out after 2s; the shell goes on]".
func told(output []byte, what string) bool {
	output = bytes.TrimRight(output, "\n")
	line := output[bytes.LastIndexByte(output, '\n')+1:]
	return bytes.HasPrefix(line, []byte("["+what)) && bytes.HasSuffix(line, []byte("]"))
}

// join puts body and tail on lines of their own and names an empty result.
func join(body, tail string) string {
	switch {
	case body == "" && tail == "":
		return "(no output)"
	case body == "":
		return tail
	case tail == "":
		return body
	case strings.HasSuffix(body, "\n"):
		return body + tail
	}
	return body + "\n" + tail
}

// Clean makes foreign bytes valid text: runs of invalid UTF-8 and NUL characters become U+FFFD. NUL goes because
// Postgres and some model providers refuse it even in escaped form; other control characters stay, and are
// escaped where they are shown.
func Clean(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	return strings.ReplaceAll(s, "\x00", "\uFFFD")
}

// Fit shortens valid text to at most size bytes, and at most encoded bytes once it is in a JSON string, by
// leaving out its middle. It reports whether it did.
func Fit(s string, size, encoded int) (string, bool) {
	if len(s) <= size && (6*len(s) <= encoded || encodedLen(s) <= encoded) {
		return s, false
	}
	const marker = "\n[... %d bytes left out ...]\n"
	size, encoded = (size-64)/2, (encoded-128)/2 // half for each end, after the marker's share
	head, tail := prefixLen(s, size, encoded), suffixLen(s, size, encoded)
	return s[:head] + fmt.Sprintf(marker, len(s)-head-tail) + s[len(s)-tail:], true
}

// encodedLen is the length of s in a JSON string as encoding/json writes it.
func encodedLen(s string) int {
	n := 0
	for _, r := range s {
		n += runeCost(r)
	}
	return n
}

func runeCost(r rune) int {
	switch {
	case r == '"', r == '\\', r == '\n', r == '\r', r == '\t', r == '\b', r == '\f':
		return 2
	case r < ' ', r == '<', r == '>', r == '&', r == '\u2028', r == '\u2029':
		return 6
	}
	return utf8.RuneLen(r)
}

// prefixLen returns the length of the longest prefix of whole characters within both bounds.
func prefixLen(s string, size, encoded int) int {
	for i, r := range s {
		encoded -= runeCost(r)
		if encoded < 0 || i+utf8.RuneLen(r) > size {
			return i
		}
	}
	return len(s)
}

// suffixLen is prefixLen from the end.
func suffixLen(s string, size, encoded int) int {
	n := 0
	for n < len(s) {
		r, w := utf8.DecodeLastRuneInString(s[:len(s)-n])
		encoded -= runeCost(r)
		if encoded < 0 || n+w > size {
			break
		}
		n += w
	}
	return n
}
