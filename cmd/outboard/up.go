package main

import (
	"context"
	"fmt"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
)

func newUp(a *app) *cobra.Command {
	return &cobra.Command{Use: "up", Short: "Start a server for the data directory in the background",
		Args: exactArgs(),
		Long: "Start a server for the data directory in the background, unless one runs. Commands that need work " +
			"done, such as\n" +
			"outboard run, do so by themselves.\n\n" +
			"The server has the environment of the command that starts it, keys of models included. It answers on this machine\n" +
			"only, writes server.log in the data directory, and ends after a time without work (idle in the configuration,\n" +
			"10 minutes by default). For a server that stays, or that others reach: outboard serve.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !canDetach {
				return outboard.Errorf(outboard.Unavailable, "there are no background servers on this system").
					WithHint("outboard serve")
			}
			data, err := a.dataDir()
			if err != nil {
				return err
			}
			if a.env("OUTBOARD_URL") != "" {
				return usagef("OUTBOARD_URL names a server, and up is about this machine").
					WithHint("unset OUTBOARD_URL")
			}
			c, err := a.background(cmd.Context(), data)
			if err != nil {
				return err
			}
			defer c.Close()
			return a.showServers(servers(data), data)
		}}
}

func newStatus(a *app) *cobra.Command {
	return &cobra.Command{Use: "status", Short: "Show the servers of the data directory", Args: exactArgs(),
		Long: "Show the servers of the data directory that run on this machine. Exit code 3 when there is none.",
		RunE: func(*cobra.Command, []string) error {
			data, err := a.dataDir()
			if err != nil {
				return err
			}
			all := servers(data)
			if len(all) == 0 {
				return outboard.Errorf(outboard.NotFound, "no server runs on %s", data).
					WithHint("outboard up starts one in the background")
			}
			return a.showServers(all, data)
		}}
}

func newDown(a *app) *cobra.Command {
	return &cobra.Command{Use: "down", Short: "End the background server of the data directory", Args: exactArgs(),
		Long: "End the background server of the data directory. What its sessions run comes to its next step, and " +
			"goes on with\n" +
			"the next server. A server that outboard serve started is left alone.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			data, err := a.dataDir()
			if err != nil {
				return err
			}
			return a.down(cmd.Context(), data)
		}}
}

func (a *app) down(ctx context.Context, data string) error {
	ended, left := 0, 0
	for _, s := range servers(data) {
		if s.Idle == "" || !s.alive() {
			a.say("process %d at %s was started by outboard serve; end it there", s.PID, s.URL)
			left++
			continue
		}
		if err := terminate(s.PID); err != nil {
			return fmt.Errorf("ending process %d: %w", s.PID, err)
		}
		if err := awaitExit(ctx, &s); err != nil {
			return err
		}
		ended++
		if err := a.done(serverLine{Type: "ended", address: s}, fmt.Sprintf("ended process %d", s.PID),
			nil); err != nil {
			return err
		}
	}
	if ended == 0 && left == 0 {
		a.say("no server runs on %s", data)
	}
	return nil
}

// awaitExit waits until the process of a server is gone.
func awaitExit(ctx context.Context, s *address) error {
	end := time.NewTimer(stopWait)
	defer end.Stop()
	look := time.NewTicker(20 * time.Millisecond) // the process is not a child of this one, so nobody tells of its end
	defer look.Stop()
	for s.alive() {
		select {
		case <-look.C:
		case <-end.C:
			return outboard.Errorf(outboard.Unavailable, "process %d does not end", s.PID).
				WithHint("kill -9 %d; its sessions go on with the next server", s.PID)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// serverLine is what a server is in machine output.
type serverLine struct {
	Type string `json:"type"`
	address
	Data string `json:"data,omitempty"`
}

// showServers prints one line for each server, or an object with --json.
func (a *app) showServers(all []address, data string) error {
	var rows [][]string
	for _, s := range all {
		if a.json {
			if err := a.object(serverLine{Type: "server", address: s, Data: data}); err != nil {
				return err
			}
			continue
		}
		ends := "when stopped"
		if s.Idle != "" {
			ends = s.Idle + " after the last work"
		}
		rows = append(rows, []string{s.URL, fmt.Sprint(s.PID), s.Since.Local().Format("2006-01-02 15:04"), ends})
		if s.Problem != "" {
			a.say("process %d can make no sandbox: %s", s.PID, s.Problem)
		}
	}
	if a.json {
		return nil
	}
	return term.Table(a.out, []string{"SERVER", "PROCESS", "SINCE", "ENDS"}, rows)
}
