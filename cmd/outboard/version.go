package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the release build; a build from a checkout reports its revision instead.
var version = ""

type versionInfo struct {
	Type     string `json:"type"`
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
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
	_, err := fmt.Fprintf(a.out, "outboard %s %s %s/%s\n", v.Version, v.Go, v.OS, v.Arch)
	return err
}

// thisVersion reads what the build recorded. Wire is the newest API version the server speaks.
func thisVersion() versionInfo {
	v := versionInfo{Type: "version", Version: version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH, Wire: "2026-10-21"}
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v.Revision = s.Value
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
