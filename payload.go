package outboard

// EventType implements Payload.
func (*SessionCreated) EventType() EventType { return TypeSessionCreated }

// RefID implements Payload.
func (*SessionCreated) RefID() EventID { return "" }

// EventType implements Payload.
func (*SessionUpdated) EventType() EventType { return TypeSessionUpdated }

// RefID implements Payload.
func (*SessionUpdated) RefID() EventID { return "" }

// EventType implements Payload.
func (*SessionArchived) EventType() EventType { return TypeSessionArchived }

// RefID implements Payload.
func (*SessionArchived) RefID() EventID { return "" }

// EventType implements Payload.
func (*InputMessage) EventType() EventType { return TypeInputMessage }

// RefID implements Payload.
func (*InputMessage) RefID() EventID { return "" }

// EventType implements Payload.
func (*InputSystem) EventType() EventType { return TypeInputSystem }

// RefID implements Payload.
func (*InputSystem) RefID() EventID { return "" }

// EventType implements Payload.
func (*InputInterrupt) EventType() EventType { return TypeInputInterrupt }

// RefID implements Payload.
func (*InputInterrupt) RefID() EventID { return "" }

// EventType implements Payload.
func (*InputConfirmation) EventType() EventType { return TypeInputConfirmation }

// RefID implements Payload.
func (p *InputConfirmation) RefID() EventID { return p.Call }

// EventType implements Payload.
func (*InputToolResult) EventType() EventType { return TypeInputToolResult }

// RefID implements Payload.
func (p *InputToolResult) RefID() EventID { return p.Call }

// EventType implements Payload.
func (*InputProcessed) EventType() EventType { return TypeInputProcessed }

// RefID implements Payload.
func (p *InputProcessed) RefID() EventID { return p.Input }

// EventType implements Payload.
func (*TurnStarted) EventType() EventType { return TypeTurnStarted }

// RefID implements Payload.
func (*TurnStarted) RefID() EventID { return "" }

// EventType implements Payload.
func (*TurnResumed) EventType() EventType { return TypeTurnResumed }

// RefID implements Payload.
func (*TurnResumed) RefID() EventID { return "" }

// EventType implements Payload.
func (*TurnRetrying) EventType() EventType { return TypeTurnRetrying }

// RefID implements Payload.
func (*TurnRetrying) RefID() EventID { return "" }

// EventType implements Payload.
func (*TurnEnded) EventType() EventType { return TypeTurnEnded }

// RefID implements Payload.
func (*TurnEnded) RefID() EventID { return "" }

// EventType implements Payload.
func (*TurnFailed) EventType() EventType { return TypeTurnFailed }

// RefID implements Payload.
func (*TurnFailed) RefID() EventID { return "" }

// EventType implements Payload.
func (*ModelStarted) EventType() EventType { return TypeModelStarted }

// RefID implements Payload.
func (*ModelStarted) RefID() EventID { return "" }

// EventType implements Payload.
func (*ModelFinished) EventType() EventType { return TypeModelFinished }

// RefID implements Payload.
func (p *ModelFinished) RefID() EventID { return p.Request }

// EventType implements Payload.
func (*ModelFailed) EventType() EventType { return TypeModelFailed }

// RefID implements Payload.
func (p *ModelFailed) RefID() EventID { return p.Request }

// EventType implements Payload.
func (*AgentThinking) EventType() EventType { return TypeAgentThinking }

// RefID implements Payload.
func (*AgentThinking) RefID() EventID { return "" }

// EventType implements Payload.
func (*AgentMessage) EventType() EventType { return TypeAgentMessage }

// RefID implements Payload.
func (*AgentMessage) RefID() EventID { return "" }

// EventType implements Payload.
func (*ContextCompacted) EventType() EventType { return TypeContextCompacted }

// RefID implements Payload.
func (*ContextCompacted) RefID() EventID { return "" }

// EventType implements Payload.
func (*CallRequested) EventType() EventType { return TypeCallRequested }

// RefID implements Payload.
func (*CallRequested) RefID() EventID { return "" }

// EventType implements Payload.
func (*CallJudged) EventType() EventType { return TypeCallJudged }

// RefID implements Payload.
func (p *CallJudged) RefID() EventID { return p.Call }

// EventType implements Payload.
func (*CallOffered) EventType() EventType { return TypeCallOffered }

// RefID implements Payload.
func (p *CallOffered) RefID() EventID { return p.Call }

// EventType implements Payload.
func (*CallStarted) EventType() EventType { return TypeCallStarted }

// RefID implements Payload.
func (p *CallStarted) RefID() EventID { return p.Call }

// EventType implements Payload.
func (*CallFinished) EventType() EventType { return TypeCallFinished }

// RefID implements Payload.
func (p *CallFinished) RefID() EventID { return p.Call }

// EventType implements Payload.
func (*SandboxReady) EventType() EventType { return TypeSandboxReady }

// RefID implements Payload.
func (*SandboxReady) RefID() EventID { return "" }

// EventType implements Payload.
func (*SandboxLost) EventType() EventType { return TypeSandboxLost }

// RefID implements Payload.
func (*SandboxLost) RefID() EventID { return "" }

// EventType implements Payload.
func (*CheckpointCreated) EventType() EventType { return TypeCheckpointCreated }

// RefID implements Payload.
func (p *CheckpointCreated) RefID() EventID { return p.Call }

// EventType implements Payload.
func (*FileHarvested) EventType() EventType { return TypeFileHarvested }

// RefID implements Payload.
func (*FileHarvested) RefID() EventID { return "" }
