package policy

import (
	"github.com/outboard-dev/outboard"
)

// permissions is what always_allow, always_ask and auto of the wire mean. A tool call carries one of them.
const permissions = `
@id("permission") @reason("the agent's permission policy is not known")
forbid (principal, action in Action::"tool", resource)
unless { ["always_allow", "always_ask", "auto"].contains(context.permission) };

@id("always_ask") @effect("ask") @reason("the agent's permission policy is always_ask")
forbid (principal, action in Action::"tool", resource)
when { context.permission == "always_ask" };

@id("auto_deny") @reason("the judge of the permission policy auto took it for too risky")
forbid (principal, action in Action::"tool", resource)
when { context.permission == "auto" && context.verdict == "deny" };

@id("auto_ask") @effect("ask") @reason("the judge of the permission policy auto gave no verdict")
forbid (principal, action in Action::"tool", resource)
when { context.permission == "auto" && !["allow", "deny"].contains(context.verdict) };
`

// trifecta asks before anything leaves a session that has read both private data and what strangers wrote. It is
// the one defence against planted instructions that does not depend on noticing them. A host that is marked as
// trusted may have it.
const trifecta = `
@id("taint") @effect("ask")
@reason("the session has read private data and untrusted content, and this could carry data outside")
forbid (principal, action in Action::"leaves", resource)
when { context.taint.private && context.taint.untrusted && !context.trusted };
`

// What the taint rule does.
const (
	TaintAsk  = "ask"
	TaintDeny = "deny"
	TaintOff  = "off"
)

// Platform is the built-in layer. taint is one of the constants above, "" for ask.
func Platform(taint string) (*Layer, error) {
	text := permissions
	switch taint {
	case "", TaintAsk:
		text += trifecta
	case TaintDeny:
		text += trifectaDeny
	case TaintOff:
	default:
		return nil, outboard.Errorf(outboard.Invalid, "the taint rule must be ask, deny or off, not %q", clip(taint))
	}
	return Compile(outboard.LevelPlatform, text)
}

const trifectaDeny = `
@id("taint")
@reason("the session has read private data and untrusted content, and this could carry data outside")
forbid (principal, action in Action::"leaves", resource)
when { context.taint.private && context.taint.untrusted && !context.trusted };
`

// RuleAutoAsk is the rule that asks because no judge has spoken.
const RuleAutoAsk = "platform/auto_ask"
