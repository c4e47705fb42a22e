package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/config"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

func newConfig(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Look at the configuration", Args: cobra.ArbitraryArgs,
		RunE: groupRun}
	cmd.AddCommand(
		&cobra.Command{Use: "path", Short: "Print where the configuration is read from", Args: exactArgs(),
			RunE: func(cmd *cobra.Command, _ []string) error { return runConfigPath(a) }},
		&cobra.Command{Use: "show", Short: "Print the configuration in effect, secrets hidden", Args: exactArgs(),
			RunE: func(cmd *cobra.Command, _ []string) error { return runConfigShow(a) }},
		&cobra.Command{Use: "init", Short: "Write a commented configuration, if there is none", Args: exactArgs(),
			RunE: func(cmd *cobra.Command, _ []string) error { return runConfigInit(a) }},
		newConfigCheck(a),
	)
	return cmd
}

func newConfigCheck(a *app) *cobra.Command {
	file := ""
	cmd := &cobra.Command{Use: "check [FILE]", Short: "Check a configuration", Args: rangeArgs(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && file != "" {
				return usagef("FILE and --config FILE name two configurations").WithHint("give one of them")
			}
			return runConfigCheck(cmd.Context(), a, cmp.Or(file, append(args, "")[0]))
		}}
	cmd.Flags().StringVar(&file, "config", "", "configuration file, as for outboard serve (default config.yaml in "+
		"the data directory)")
	return cmd
}

// configPath returns the file that is read, and whether it is there.
func (a *app) configPath() (string, bool, error) {
	data, err := a.dataDir()
	if err != nil {
		return "", false, err
	}
	path := cmp.Or(a.env("OUTBOARD_CONFIG"), filepath.Join(data, "config.yaml"))
	_, err = os.Stat(path)
	return path, err == nil, nil
}

func runConfigPath(a *app) error {
	path, there, err := a.configPath()
	if err != nil {
		return err
	}
	if a.json {
		return a.object(map[string]any{"type": "config", "path": path, "exists": there})
	}
	if !there {
		a.say("it is not there yet; outboard config init writes one")
	}
	_, err = fmt.Fprintln(a.out, path)
	return err
}

func runConfigShow(a *app) error {
	data, err := a.dataDir()
	if err != nil {
		return err
	}
	cfg, err := loadConfig(data, "", a.env)
	if err != nil {
		return err
	}
	b, err := yaml.Marshal(cfg)
	if err != nil {
		return fmt.Errorf("showing the configuration: %w", err)
	}
	if a.json {
		var v any
		if err := yaml.Unmarshal(b, &v); err != nil {
			return fmt.Errorf("showing the configuration: %w", err)
		}
		return a.object(map[string]any{"type": "config", "config": v})
	}
	w, flush := exact(a.out)
	defer flush()
	_, err = w.Write(b)
	return err
}

func runConfigInit(a *app) error {
	path, _, err := a.configPath()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return dataError(filepath.Dir(path), err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return outboard.Errorf(outboard.Conflict, "%s is there already", path).
			WithHint("outboard config check says whether it is in order")
	}
	if err != nil {
		return dataError(filepath.Dir(path), err)
	}
	_, err = f.WriteString(config.Example())
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if a.json {
		return a.object(map[string]any{"type": "config", "path": path, "exists": true})
	}
	_, err = fmt.Fprintln(a.out, path)
	return err
}

func runConfigCheck(_ context.Context, a *app, path string) error {
	data, err := a.dataDir()
	if err != nil {
		return err
	}
	cfg, err := loadConfig(data, path, a.env)
	if err != nil {
		return err
	}
	reg, err := llm.NewRegistry(cfg.LLM)
	if err != nil {
		return err
	}
	if a.json {
		models := []string{}
		for _, m := range reg.Models() {
			models = append(models, m.ID)
		}
		return a.object(map[string]any{"type": "config", "ok": true, "models": models})
	}
	a.say("the configuration is in order; %d providers, %d models by name", len(cfg.LLM.Providers), len(reg.Models()))
	return nil
}

// loadConfig reads the configuration file. A file that was named must exist; the default one need not.
func loadConfig(data, path string, env func(string) string) (*config.Config, error) {
	path = cmp.Or(path, env("OUTBOARD_CONFIG"))
	if path == "" {
		path = filepath.Join(data, "config.yaml")
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			path = ""
		}
	}
	return config.Load(path, env)
}
