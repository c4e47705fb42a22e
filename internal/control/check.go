package control

import (
	"maps"
	"strings"
	"unicode/utf8"

	"github.com/outboard-dev/outboard"
)

// Limits of the Managed Agents wire on what a request may name.
const (
	maxName      = 256
	maxAgentText = 2048 // description of an agent
	// seconds of a lifecycle: longer than anything rests, and no overflow as a duration
	maxRest        = 10 * 366 * 24 * 3600
	maxEnvText     = 1024    // description of an environment
	maxSystem      = 100_000 // characters of a system prompt
	maxTitle       = 500
	maxMetadata    = 16
	maxMetaKey     = 64
	maxMetaValue   = 512
	maxModelID     = 256
	maxGeo         = 64
	maxHosts       = 1000 // allowed_hosts of one environment, so that a config stays a small row
	maxPackages    = 500  // packages of one manager, for the same reason
	maxPackageName = 256
)

func invalid(format string, args ...any) *outboard.Error {
	return outboard.Errorf(outboard.Invalid, format, args...)
}

func unbuilt(format string, args ...any) *outboard.Error {
	return outboard.Errorf(outboard.Unimplemented, format, args...)
}

// length refuses text outside [low, high] characters, and the NUL character, which PostgreSQL cannot store.
func length(field, s string, low, high int) error {
	n := utf8.RuneCountInString(s)
	switch {
	case n < low && low == 1:
		return invalid("%s must not be empty", field)
	case n < low:
		return invalid("%s must have at least %d characters, not %d", field, low, n)
	case n > high:
		return invalid("%s must have at most %d characters, not %d", field, high, n)
	case strings.ContainsRune(s, 0):
		return invalid("%s must not contain the NUL character", field)
	}
	return nil
}

// metadata checks a whole metadata map.
func checkMetadata(m map[string]string) error {
	if len(m) > maxMetadata {
		return invalid("metadata must have at most %d pairs, not %d", maxMetadata, len(m)).WithCode("invalid_metadata")
	}
	for k, v := range m {
		if err := length("metadata key "+quote(k), k, 1, maxMetaKey); err != nil {
			return err
		}
		if err := length("metadata value of "+quote(k), v, 0, maxMetaValue); err != nil {
			return err
		}
	}
	return nil
}

// mergeMetadata applies a patch: a nil value deletes, and with emptyDeletes, as environments have it, an empty
// one too. It returns a new map, never nil.
func mergeMetadata(old map[string]string, patch map[string]*string, emptyDeletes bool) (map[string]string, error) {
	out := maps.Clone(old)
	if out == nil {
		out = map[string]string{}
	}
	for k, v := range patch {
		if v == nil || emptyDeletes && *v == "" {
			delete(out, k)
			continue
		}
		out[k] = *v
	}
	return out, checkMetadata(out)
}

// quote shows a caller's string in an error, cut to a readable length.
func quote(s string) string {
	if len(s) > shownID {
		s = strings.ToValidUTF8(s[:shownID], "") + "..."
	}
	return `"` + strings.ToValidUTF8(s, "?") + `"`
}
