package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// The release build sets these. A build from a checkout has its commit and the day of it from the Go toolchain instead.
var version, commit, date string

type versionInfo struct {
	Type     string `json:"type"`
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"` // the commit
	Date     string `json:"date,omitempty"`     // when that was made, by RFC 3339
	Modified bool   `json:"modified,omitempty"` // the checkout differed from it
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
	Wire     string `json:"wire"`
}

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{Use: "version", Short: "Print the version", Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runVersion(cmd.Context(), a) }}
}

func runVersion(_ context.Context, a *app) error {
	v := thisVersion()
	if a.json {
		return a.object(v)
	}
	_, err := fmt.Fprintf(a.out, "outboard %s%s %s %s/%s\n", v.Version, v.from(), v.Go, v.OS, v.Arch)
	return err
}

// from names the commit and its day in parentheses, as far as the build knew them.
func (v versionInfo) from() string {
	const short = 12
	parts := []string{v.Revision[:min(len(v.Revision), short)], v.Date[:min(len(v.Date), len(time.DateOnly))]}
	if v.Modified {
		parts[0] += "+modified"
	}
	parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

// thisVersion reads what the build recorded. Wire is the newest API version the server speaks.
func thisVersion() versionInfo {
	v := versionInfo{Type: "version", Version: version, Revision: commit, Date: date, Go: runtime.Version(),
		OS:   runtime.GOOS,
		Arch: runtime.GOARCH, Wire: "2026-10-21"}
	info, ok := debug.ReadBuildInfo()
	if ok && commit == "" {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				v.Revision = s.Value
			case "vcs.time":
				v.Date = s.Value
			case "vcs.modified":
				v.Modified = s.Value == "true"
			}
		}
	}
	switch {
	case v.Version != "":
	case ok && info.Main.Version != "" && info.Main.Version != "(devel)":
		v.Version = info.Main.Version
	default:
		v.Version = "devel"
	}
	return v
}
