package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// completeTimeout bounds how long the shell waits for names.
const completeTimeout = 2 * time.Second

// completeSessions offers session names, newest first. Only a running server is asked: a key press must not start one.
func (a *app) completeSessions(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
	defer cancel()
	c, err := a.connectRunning(ctx)
	if err != nil || c == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	var names []string
	for s, err := range c.Sessions(ctx, false) {
		if err != nil || len(names) == listed {
			break
		}
		if n := sessionName(s.ID); strings.HasPrefix(n, prefix) {
			names = append(names, n+"\t"+s.Title)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
